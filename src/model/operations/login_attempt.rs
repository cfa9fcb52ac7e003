//! A login that a BMC has refused, or may have refused: a further try may lock the account. Pure.

use meshd_types::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time in which a BMC gets no login that it refused.
pub const LOGIN_HOLD: Duration = Duration::from_secs(600);
/// Maximum number of records. Beyond it, the oldest one goes.
pub const MAX_LOGIN_ATTEMPTS: usize = 16_384;
/// Tries without a known answer before the hold: many BMCs lock an account at the third refusal.
const MAX_UNANSWERED: u8 = 2;

/// The tries of a login that its BMC has not accepted. Stored before the first one, and removed
/// when the BMC accepts the login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginAttempt {
    /// Keyed digest of user and password.
    pub login: Digest,
    /// Tries that are under way, or that meshd did not see the end of.
    pub tries: u8,
    /// The BMC refused the login.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_refused: bool,
    /// Time of the last try or of the refusal.
    pub at: Timestamp,
}

/// Why a login is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginHeld {
    #[error(
        "the BMC refused this user and password a moment ago; meshd sends them again after ten minutes, others at once"
    )]
    Refused,
    #[error(
        "meshd ended during two tries of this user and password; the next one is ten minutes later, because a third refusal may lock the account"
    )]
    Unanswered,
}

impl LoginAttempt {
    /// Returns the record of the next try of a login, after the stored record of its BMC.
    ///
    /// # Errors
    /// The BMC refused the login, or may have, within [`LOGIN_HOLD`].
    pub fn next(before: Option<&Self>, login: Digest, now: Timestamp) -> Result<Self, LoginHeld> {
        let before = before.filter(|before| before.login == login && !before.is_over(now));
        let tries = match before {
            Some(LoginAttempt { is_refused: true, .. }) => return Err(LoginHeld::Refused),
            Some(before) if before.tries >= MAX_UNANSWERED => return Err(LoginHeld::Unanswered),
            before => before.map_or(0, |before| before.tries),
        };
        Ok(LoginAttempt { login, tries: tries + 1, is_refused: false, at: now })
    }

    /// Returns the record of a refusal.
    pub fn refused(login: Digest, now: Timestamp) -> Self {
        LoginAttempt { login, tries: 1, is_refused: true, at: now }
    }

    /// Whether the hold has ended by the wall clock. A process that saw its begin has a monotonic
    /// deadline, too.
    fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.at) >= LOGIN_HOLD
    }

    /// Returns the record of a hold that starts anew, if the clock was set back: no record holds a
    /// login for longer than the hold after it.
    pub fn restarted(&self, now: Timestamp) -> Option<Self> {
        (self.at > now).then(|| LoginAttempt { at: now, ..self.clone() })
    }

    /// Returns the rest of the hold by the wall clock.
    pub fn rest(&self, now: Timestamp) -> Duration {
        LOGIN_HOLD.saturating_sub(now.since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_login_is_held_until_it_changes_or_the_hold_ends() {
        let [wrong, right] = [1, 2].map(|byte| Digest([byte; 32]));
        let at = |seconds: i64| Timestamp::from_millis((seconds + 10_000) * 1000);
        let first = LoginAttempt::next(None, wrong, at(0)).unwrap();
        assert_eq!(first.tries, 1);
        let refused = LoginAttempt::refused(wrong, at(1));
        let next = |login, seconds| LoginAttempt::next(Some(&refused), login, at(seconds));
        assert_eq!(next(wrong, 600), Err(LoginHeld::Refused));
        assert_eq!(next(wrong, 601).unwrap().tries, 1);
        assert_eq!(next(wrong, -599), Err(LoginHeld::Refused), "the clock was set back");
        let restarted = refused.restarted(at(-599)).unwrap();
        assert_eq!(
            (restarted.at, restarted.rest(at(-500))),
            (at(-599), LOGIN_HOLD - Duration::from_secs(99))
        );
        assert_eq!(restarted.restarted(at(-599)), None);
        assert_eq!(next(right, 2).unwrap().tries, 1, "another password");
        let stored = serde_json::to_string(&refused).unwrap();
        assert_eq!(serde_json::from_str::<LoginAttempt>(&stored).unwrap(), refused);
    }

    #[test]
    fn two_tries_without_an_answer_are_followed_by_the_hold() {
        let login = Digest([1; 32]);
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let first = LoginAttempt::next(None, login, at(0)).unwrap();
        let second = LoginAttempt::next(Some(&first), login, at(5)).unwrap();
        assert_eq!(second.tries, 2);
        assert_eq!(LoginAttempt::next(Some(&second), login, at(10)), Err(LoginHeld::Unanswered));
        assert_eq!(LoginAttempt::next(Some(&second), login, at(605)).unwrap().tries, 1);
    }
}
