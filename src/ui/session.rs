//! Who is signed in: sessions in memory, and the link that signs in once.

use meshd_api::CallerView;
use meshd_types::{Digest, Secret, fail, hex};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Sessions at one time; the one that was not used for longest makes room.
const MAX_SESSIONS: usize = 256;
/// A session ends when it was not used for so long.
const IDLE_TIME: Duration = Duration::from_secs(12 * 3600);
/// Longest session ID that is looked at, in bytes.
const MAX_ID: usize = 64;

/// How people sign in.
#[derive(Clone)]
pub enum SignIn {
    /// With an API token, over TLS.
    Token,
    /// With a link that works once, at a loopback address. The API is asked without a token.
    Link(LinkCode),
}

/// The secret of a link that signs in once.
#[derive(Clone)]
pub struct LinkCode(Arc<Mutex<Option<Secret<String>>>>);

impl LinkCode {
    /// A code from 32 random bytes, with its text for the link.
    pub fn new(random: [u8; 32]) -> (Self, Secret<String>) {
        let text = Secret::new(hex(&random));
        (LinkCode(Arc::new(Mutex::new(Some(text.clone())))), text)
    }

    /// True for the right code, once.
    pub(crate) fn redeem(&self, code: &str) -> bool {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Digests are compared: the time tells nothing of the code.
        let is_right =
            kept.as_ref().is_some_and(|kept| Digest::of(kept.expose().as_bytes()) == Digest::of(code.as_bytes()));
        if is_right && fail::defends("ui-link-once") {
            *kept = None;
        }
        is_right
    }
}

/// Somebody who is signed in.
#[derive(Clone)]
pub(crate) struct Session {
    /// Digest of its ID.
    pub(crate) key: Digest,
    /// Shown to the API with each request; `None` where the API knows the caller by the connection.
    pub(crate) token: Option<Secret<String>>,
    pub(crate) caller: CallerView,
    used: Instant,
}

/// Sessions by the digest of their ID: a session cannot be taken over by whoever reads this table.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<BTreeMap<Digest, Session>>>);

impl Sessions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Digest, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session; gives its ID.
    pub(crate) fn begin(
        &self,
        random: [u8; 32],
        token: Option<Secret<String>>,
        caller: CallerView,
        now: Instant,
    ) -> Secret<String> {
        let id = hex(&random);
        let mut all = self.all();
        all.retain(|_, session| now.duration_since(session.used) < IDLE_TIME);
        if all.len() >= MAX_SESSIONS
            && let Some(oldest) = all.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id)
        {
            all.remove(&oldest);
        }
        let key = Digest::of(id.as_bytes());
        all.insert(key, Session { key, token, caller, used: now });
        Secret::new(id)
    }

    /// The session of an ID, if it is not over.
    pub(crate) fn find(&self, id: &str, now: Instant) -> Option<Session> {
        if id.len() > MAX_ID {
            return None;
        }
        let mut all = self.all();
        let session = all.get_mut(&Digest::of(id.as_bytes()))?;
        if now.duration_since(session.used) >= IDLE_TIME {
            return None;
        }
        session.used = now;
        Some(session.clone())
    }

    /// Ends a session; gives its key.
    pub(crate) fn end(&self, id: &str) -> Digest {
        let key = Digest::of(id.as_bytes());
        self.all().remove(&key);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_trust::Role;

    fn caller(name: &str) -> CallerView {
        CallerView { name: name.to_owned(), role: Role::Viewer }
    }

    fn numbered(n: usize) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        bytes
    }

    #[test]
    fn session_ends_when_it_is_not_used() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let id = sessions.begin([1; 32], None, caller("ada"), start);
        let later = start + IDLE_TIME - Duration::from_secs(1);
        assert!(sessions.find(id.expose(), later).is_some());
        assert!(sessions.find(id.expose(), later + IDLE_TIME - Duration::from_secs(1)).is_some(), "it was used");
        assert!(sessions.find(id.expose(), later + IDLE_TIME * 2).is_none());
        assert!(sessions.find("another", start).is_none());
        sessions.end(id.expose());
        assert!(sessions.find(id.expose(), start).is_none());
    }

    #[test]
    fn table_of_sessions_is_bounded_and_the_idlest_makes_room() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let ids: Vec<_> = (0..=MAX_SESSIONS)
            .map(|n| {
                let now = start + Duration::from_secs(u64::try_from(n).expect("small"));
                sessions.begin(numbered(n), None, caller("ada"), now)
            })
            .collect();
        let now = start + Duration::from_secs(1000);
        assert!(sessions.find(ids[0].expose(), now).is_none());
        assert!(ids[1..].iter().all(|id| sessions.find(id.expose(), now).is_some()));
    }

    #[test]
    fn link_signs_in_once() {
        let (code, text) = LinkCode::new([7; 32]);
        assert!(!code.redeem("wrong") && !code.redeem(""));
        assert!(code.redeem(text.expose()));
        assert!(!code.redeem(text.expose()), "it was used");
    }
}
