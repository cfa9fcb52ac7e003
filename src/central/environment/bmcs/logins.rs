//! Logins of BMCs: a login that was refused is not sent again for a while, also after a restart,
//! because BMCs lock accounts.
//!
//! A try is stored before it is sent, unless this process has seen the BMC accept the login. So a
//! process that ends again and again during a try sends two of them. The record goes when the BMC
//! accepts the login or fails otherwise.

use super::{Bmcs, ResolvedBmc};
use meshd_bmc::Bmc;
use meshd_model::operations::{
    BmcFailure, LOGIN_HOLD, LoginAttempt, LoginHeld, MAX_LOGIN_ATTEMPTS,
};
use meshd_store::StoreError;
use meshd_trust::MarkKey;
use meshd_types::{Digest, Secret, failpoint};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::OnceCell;

/// Logins that BMCs have accepted or refused since the start.
#[derive(Default)]
pub(super) struct LoginStates(BTreeMap<Digest, (Digest, LoginState)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoginState {
    Accepted,
    /// Until this monotonic time: the wall clock may jump.
    Held(LoginHeld, Duration),
}

impl LoginStates {
    /// Returns the state of a login; `None` for one whose record in the store decides.
    fn get(&self, login: &LoginOfBmc, monotonic: Duration) -> Option<LoginState> {
        let (mark, state) = self.0.get(&login.bmc)?;
        let is_over = matches!(state, LoginState::Held(_, until) if *until <= monotonic);
        (*mark == login.mark && !is_over).then_some(*state)
    }

    fn insert(&mut self, login: &LoginOfBmc, state: LoginState) {
        if self.0.len() >= MAX_LOGIN_ATTEMPTS && !self.0.contains_key(&login.bmc) {
            // Each try of them is stored again, and their records hold the refused ones.
            self.0.clear();
        }
        self.0.insert(login.bmc, (login.mark, state));
    }
}

/// A login at one BMC, as digests.
pub(super) struct LoginOfBmc {
    /// Of host and port.
    bmc: Digest,
    /// Of user and password, with the key of the site.
    mark: Digest,
}

/// The key of the site's marks, read at the first use.
#[derive(Default)]
pub(super) struct LoginKey(OnceCell<MarkKey>);

impl Bmcs {
    /// Stores the next try of a login. Returns `None` for a BMC without a login.
    ///
    /// # Errors
    /// The BMC refused the login a moment ago, or the try cannot be stored: nothing is sent.
    pub(super) async fn begin_login(
        &self,
        resolved: &ResolvedBmc,
        bmc: &Bmc,
    ) -> Result<Option<LoginOfBmc>, BmcFailure> {
        let Some(login) = &bmc.login else { return Ok(None) };
        // Safe: only a keyed digest is stored.
        let pair = format!("{}\n{}", login.user, login.password.expose());
        let mark = self.login_key().await?.mark("login of a BMC", &Secret::new(pair));
        let login = LoginOfBmc { bmc: Digest::of(resolved.key.as_bytes()), mark };
        let monotonic = self.env.monotonic();
        let state = self.logins.lock().get(&login, monotonic);
        match state {
            Some(LoginState::Accepted) => return Ok(Some(login)),
            Some(LoginState::Held(held, _)) => {
                return Err(held_failure(held));
            }
            None => {}
        }
        let now = self.env.now();
        let begun = self.env.store.commit(|tx| {
            let before = tx.login_attempt(login.bmc).cloned();
            let restarted = before.as_ref().and_then(|before| before.restarted(now));
            let before = restarted.clone().or(before);
            let next = LoginAttempt::next(before.as_ref(), login.mark, now);
            let stored = next.as_ref().ok().cloned().or(restarted);
            stored.into_iter().for_each(|attempt| tx.put_login_attempt(login.bmc, attempt));
            let rest = before.map(|before| before.rest(now)).unwrap_or_default();
            Ok::<_, StoreError>(next.map(drop).map_err(|held| (held, rest)))
        });
        if let Err((held, rest)) = begun.await.map_err(|error| unstored(&error))? {
            self.logins.lock().insert(&login, LoginState::Held(held, monotonic + rest));
            return Err(held_failure(held));
        }
        failpoint::point("login-begun");
        Ok(Some(login))
    }

    /// Stores how a try of a login ended, before anything else learns of it.
    pub(super) async fn end_login(&self, login: LoginOfBmc, failure: Option<&BmcFailure>) {
        let is_refused = matches!(failure, Some(BmcFailure::Credentials(_)));
        let monotonic = self.env.monotonic();
        let state = match failure {
            None | Some(BmcFailure::Unsupported(_)) => Some(LoginState::Accepted),
            Some(BmcFailure::Credentials(_)) => {
                Some(LoginState::Held(LoginHeld::Refused, monotonic + LOGIN_HOLD))
            }
            // It says nothing of the login.
            Some(_) => None,
        };
        state.into_iter().for_each(|state| self.logins.lock().insert(&login, state));
        let now = self.env.now();
        let is_stored = self.env.store.read(|model| model.login_attempt(login.bmc).is_some());
        if !is_refused && !is_stored {
            return;
        }
        let ended = self.env.store.commit(|tx| {
            if is_refused {
                tx.put_login_attempt(login.bmc, LoginAttempt::refused(login.mark, now));
            } else {
                tx.remove_login_attempt(login.bmc);
            }
            Ok::<_, StoreError>(())
        });
        // The try is stored already, unless the BMC had accepted the login before.
        crate::environment::alarms::log_failure(ended.await, "cannot store the end of a login");
    }

    /// Reads the key, or creates it. One call does it: others wait, because two that create the file
    /// at once would have different keys.
    async fn login_key(&self) -> Result<&MarkKey, BmcFailure> {
        let failed = |cause: String| BmcFailure::Failed(format!("the key of secrets: {cause}"));
        let read = async || {
            let folder = self.env.site().state_dir.clone();
            let random = self.env.random();
            let read =
                tokio::task::spawn_blocking(move || MarkKey::load_or_create(&folder, random));
            let key = read.await.map_err(|error| failed(error.to_string()))?;
            key.map_err(|error| failed(error.to_string()))
        };
        self.login_key.0.get_or_try_init(read).await
    }
}

/// A login that meshd did not see the end of says nothing of the order: its later questions may be
/// answered.
fn held_failure(held: LoginHeld) -> BmcFailure {
    match held {
        LoginHeld::Refused => BmcFailure::Credentials(held.to_string()),
        LoginHeld::Unanswered => BmcFailure::Failed(held.to_string()),
    }
}

fn unstored(error: &StoreError) -> BmcFailure {
    BmcFailure::Failed(format!("nothing was sent, because the try cannot be stored: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_login_is_held_by_the_monotonic_clock_also_if_it_was_accepted() {
        let login = |mark| LoginOfBmc { bmc: Digest([1; 32]), mark: Digest([mark; 32]) };
        let at = Duration::from_secs;
        let mut states = LoginStates::default();
        assert_eq!(states.get(&login(1), at(0)), None);
        states.insert(&login(1), LoginState::Accepted);
        assert_eq!(states.get(&login(1), at(9999)), Some(LoginState::Accepted));
        let held = LoginState::Held(LoginHeld::Refused, at(600));
        states.insert(&login(1), held);
        assert_eq!(states.get(&login(1), at(599)), Some(held));
        assert_eq!(states.get(&login(1), at(600)), None, "the record decides");
        assert_eq!(states.get(&login(2), at(1)), None, "another password");
    }
}
