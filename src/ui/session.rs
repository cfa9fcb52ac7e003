//! Sessions in memory, and the single-use sign-in link.

use meshd_api::CallerView;
use meshd_types::{Digest, Secret, failpoint, hex};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum number of sessions. A new session replaces the least recently used one.
const MAX_SESSIONS: usize = 256;
/// Maximum number of sessions per token. A new session replaces the token's least recently used
/// session, never a session of another token.
const MAX_OF_TOKEN: usize = 8;
/// A session ends after this time without use.
const IDLE_TIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum age of a session, even in use: an open page sends a request every few seconds.
const MAX_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Maximum length of a session ID that meshd checks, in bytes.
const MAX_ID: usize = 64;

/// Method of signing in.
#[derive(Clone)]
pub enum SignIn {
    /// Sign-in with an API token, over TLS.
    Token,
    /// Sign-in with a single-use link at a loopback address. Requests to the API carry no token.
    Link(LinkCode),
}

/// Secret of a single-use sign-in link.
#[derive(Clone)]
pub struct LinkCode(Arc<Mutex<Option<Secret<String>>>>);

impl LinkCode {
    /// Creates a code from 32 random bytes, and returns it with its text for the link.
    pub fn new(random: [u8; 32]) -> (Self, Secret<String>) {
        let text = Secret::new(hex(&random));
        (LinkCode(Arc::new(Mutex::new(Some(text.clone())))), text)
    }

    /// Returns true once, for the correct code.
    pub(crate) fn redeem(&self, code: &str) -> bool {
        let mut unused_code = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The comparison uses digests, so its duration reveals nothing about the code.
        let is_right = unused_code.as_ref().is_some_and(|known| {
            Digest::of(known.expose().as_bytes()) == Digest::of(code.as_bytes())
        });
        if is_right && failpoint::defends("ui-link-once") {
            *unused_code = None;
        }
        is_right
    }
}

/// Where a session was begun: a user of this machine, or a network address. A request with the
/// session's cookie from elsewhere is refused. The hosting program adds it to the extensions of
/// each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOrigin(String);

impl SessionOrigin {
    /// The origin of a client at an address. IPv6 clients change the lower half of their address
    /// every day.
    pub fn of_address(address: IpAddr) -> Self {
        SessionOrigin(match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("{:x}/64", u128::from(address) >> 64),
        })
    }

    /// The origin of a program on this machine, by its user.
    pub fn of_user(uid: u32) -> Self {
        SessionOrigin(format!("uid {uid}"))
    }
}

/// Session of a signed-in user.
#[derive(Clone)]
pub(crate) struct Session {
    /// Digest of the session ID.
    pub(crate) key: Digest,
    /// Sent to the API with each request; `None` if the API identifies the caller by the
    /// connection.
    pub(crate) token: Option<Secret<String>>,
    pub(crate) caller: CallerView,
    origin: Option<SessionOrigin>,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE_TIME
            || (now.duration_since(self.begun) >= MAX_LIFE && failpoint::defends("ui-session-life"))
    }

    fn belongs_to(&self, token: Option<&Secret<String>>) -> bool {
        let digest = |token: &Secret<String>| Digest::of(token.expose().as_bytes());
        self.token.as_ref().map(digest) == token.map(digest)
    }
}

/// Result of a sign-in.
pub(crate) struct NewSession {
    pub(crate) id: Secret<String>,
    /// Keys of the sessions that the new session replaced.
    pub(crate) ended: Vec<Digest>,
}

/// Returns the key of the least recently used session.
fn idlest<'s>(sessions: impl Iterator<Item = &'s Session>) -> Option<Digest> {
    sessions.min_by_key(|session| session.used).map(|session| session.key)
}

/// Sessions by the digest of their ID. An attacker who reads this table cannot take over a session.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<BTreeMap<Digest, Session>>>);

impl Sessions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Digest, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(
        &self,
        random: [u8; 32],
        token: Option<Secret<String>>,
        caller: CallerView,
        origin: Option<SessionOrigin>,
        now: Instant,
    ) -> NewSession {
        let id = hex(&random);
        let mut all = self.all();
        let mut ended: Vec<Digest> =
            all.values().filter(|session| session.is_over(now)).map(|it| it.key).collect();
        ended.iter().for_each(|key| drop(all.remove(key)));
        let own = all.values().filter(|session| session.belongs_to(token.as_ref()));
        let surplus =
            if own.clone().count() >= MAX_OF_TOKEN && failpoint::defends("ui-session-share") {
                idlest(own)
            } else if all.len() >= MAX_SESSIONS {
                idlest(all.values())
            } else {
                None
            };
        if let Some(surplus) = surplus {
            all.remove(&surplus);
            ended.push(surplus);
        }
        let key = Digest::of(id.as_bytes());
        all.insert(key, Session { key, token, caller, origin, begun: now, used: now });
        NewSession { id: Secret::new(id), ended }
    }

    /// Returns the session of an ID unless the session has ended or was begun elsewhere.
    pub(crate) fn find(
        &self,
        id: &str,
        origin: Option<&SessionOrigin>,
        now: Instant,
    ) -> Option<Session> {
        if id.len() > MAX_ID {
            return None;
        }
        let mut all = self.all();
        let session = all.get_mut(&Digest::of(id.as_bytes()))?;
        if session.is_over(now) {
            return None;
        }
        if session.origin.as_ref() != origin && failpoint::defends("ui-session-origin") {
            let begun = session.origin.as_ref().map_or("nowhere", |origin| &origin.0);
            let used = origin.map_or("nowhere", |origin| &origin.0);
            tracing::warn!(
                actor = session.caller.name,
                begun,
                used,
                "a session cookie was used elsewhere; the session ends"
            );
            return None;
        }
        session.used = now;
        Some(session.clone())
    }

    /// Returns true until the session with this key ends. This check does not count as use.
    pub(crate) fn lives(&self, key: Digest, now: Instant) -> bool {
        self.all().get(&key).is_some_and(|session| !session.is_over(now))
    }

    /// Ends a session and returns its key.
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
    fn idle_session_expires() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let id = sessions.begin([1; 32], None, caller("ada"), None, start).id;
        let later = start + IDLE_TIME - Duration::from_secs(1);
        assert!(sessions.find(id.expose(), None, later).is_some());
        assert!(
            sessions.find(id.expose(), None, later + IDLE_TIME - Duration::from_secs(1)).is_some(),
            "it was used"
        );
        assert!(sessions.find(id.expose(), None, later + IDLE_TIME * 2).is_none());
        assert!(sessions.find("another", None, start).is_none());
        sessions.end(id.expose());
        assert!(sessions.find(id.expose(), None, start).is_none());
    }

    #[test]
    fn session_expires_one_day_after_sign_in_despite_use() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let id = sessions.begin([1; 32], None, caller("ada"), None, start).id;
        let key = Digest::of(id.expose().as_bytes());
        for hour in 1..24 {
            assert!(
                sessions
                    .find(id.expose(), None, start + Duration::from_secs(hour * 3600))
                    .is_some(),
                "{hour}"
            );
        }
        assert!(sessions.lives(key, start + MAX_LIFE - Duration::from_secs(1)));
        assert!(!sessions.lives(key, start + MAX_LIFE));
        assert!(sessions.find(id.expose(), None, start + MAX_LIFE).is_none());
    }

    #[test]
    fn session_table_is_bounded_and_evicts_idlest_session() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let ids: Vec<_> = (0..=MAX_SESSIONS)
            .map(|n| {
                let now = start + Duration::from_secs(u64::try_from(n).expect("small"));
                sessions.begin(
                    numbered(n),
                    Some(Secret::new(format!("token {n}"))),
                    caller("ada"),
                    None,
                    now,
                )
            })
            .collect();
        let now = start + Duration::from_secs(1000);
        assert!(sessions.find(ids[0].id.expose(), None, now).is_none());
        assert!(ids[1..].iter().all(|begun| sessions.find(begun.id.expose(), None, now).is_some()));
        assert_eq!(ids[MAX_SESSIONS].ended, [Digest::of(ids[0].id.expose().as_bytes())]);
    }

    #[test]
    fn repeated_sign_in_evicts_only_sessions_of_same_token() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let begin = |n: usize, token: &str| {
            let now = start + Duration::from_secs(u64::try_from(n).expect("small"));
            sessions.begin(
                numbered(n),
                Some(Secret::new(token.to_owned())),
                caller("ada"),
                None,
                now,
            )
        };
        let victim = begin(0, "operator");
        let floods: Vec<_> = (1..=2 * MAX_SESSIONS).map(|n| begin(n, "viewer")).collect();
        let now = start + Duration::from_secs(3600);
        assert!(sessions.find(victim.id.expose(), None, now).is_some(), "another token's session");
        let (ended, alive) = floods.split_at(floods.len() - MAX_OF_TOKEN);
        assert!(ended.iter().all(|begun| sessions.find(begun.id.expose(), None, now).is_none()));
        assert!(alive.iter().all(|begun| sessions.find(begun.id.expose(), None, now).is_some()));
        assert_eq!(floods[MAX_OF_TOKEN].ended, [Digest::of(floods[0].id.expose().as_bytes())]);
    }

    #[test]
    fn link_code_is_redeemed_once() {
        let (code, text) = LinkCode::new([7; 32]);
        assert!(!code.redeem("wrong") && !code.redeem(""));
        assert!(code.redeem(text.expose()));
        assert!(!code.redeem(text.expose()), "it was used");
    }
}
