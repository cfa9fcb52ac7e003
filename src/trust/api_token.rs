//! API tokens of the admin API. A token is shown once; the store keeps only its hash.

use meshd_types::{ApiTokenName, Digest, ParseError, Secret, Timestamp, hex};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};
use subtle::ConstantTimeEq as _;

/// Prefix of every token, which identifies a leaked one.
const PREFIX: &str = "meshd_";
/// Maximum correction of the clock that no token notices.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 60);

/// Role of a token. Each role includes all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(utoipa::ToSchema)]
pub enum Role {
    /// Reads everything except overlays, which contain secrets.
    Viewer,
    /// Also reads access data: the API tokens.
    Auditor,
    /// Also gives orders about nodes and their boots.
    Operator,
    /// Also manages access: tokens, certificates, backups.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Auditor, Role::Operator, Role::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Auditor => "auditor",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Role::ALL.into_iter().find(|role| role.as_str() == text);
        let hint = "use viewer, auditor, operator or admin";
        named.ok_or_else(|| ParseError::of_text(text, "is not a role", hint))
    }
}

/// Stored part of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// Unique name.
    pub name: ApiTokenName,
    /// Hash of the token.
    pub hash: Digest,
    pub role: Role,
    pub created_at: Timestamp,
    /// Time of expiry; `None` for a token that is valid until its revocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl ApiToken {
    /// Creates a token from 32 random bytes; returns its text, which is shown once, and its record.
    pub fn mint(
        random: [u8; 32],
        name: ApiTokenName,
        role: Role,
        created_at: Timestamp,
        expires_at: Option<Timestamp>,
    ) -> (Secret<String>, Self) {
        let text = format!("{PREFIX}{}", hex(&random));
        let hash = Digest::of(text.as_bytes());
        (Secret::new(text), ApiToken { name, hash, role, created_at, expires_at })
    }

    /// Returns whether the text is this token, in constant time.
    pub fn matches(&self, text: &str) -> bool {
        self.hash.0.ct_eq(&Digest::of(text.as_bytes()).0).into()
    }

    /// Returns whether the token is no longer valid. A token that expires is not valid either while
    /// the clock shows a time before its creation: how much of its life is over is unknown.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| now > end || now.after(CLOCK_SLACK) < self.created_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_token_matches_its_text_until_expiry_and_is_stored_hashed() {
        let at = Timestamp::from_millis;
        let name: ApiTokenName = "ci".parse().expect("a name");
        let (text, token) = ApiToken::mint([7; 32], name, Role::Operator, at(1), Some(at(10)));
        assert!(
            token.matches(text.expose())
                && !token.matches("")
                && !token.matches(&text.expose()[1..])
        );
        assert!(!token.is_over(at(10)) && token.is_over(at(11)));
        let day = 86_400_000;
        let later = ApiToken {
            created_at: at(20_000 * day),
            expires_at: Some(at(20_001 * day)),
            ..token.clone()
        };
        assert!(
            later.is_over(Timestamp::EPOCH) && later.is_over(at(50_000 * day)),
            "the clock shows 1970 or 2106"
        );
        assert!(!later.is_over(at(20_000 * day - 1000)), "the clock was corrected");
        assert!(
            !ApiToken { expires_at: None, ..later }.is_over(Timestamp::EPOCH),
            "it ends by revocation only"
        );
        let stored = serde_json::to_string(&token).expect("plain data");
        assert!(!stored.contains(&text.expose()[PREFIX.len()..]), "{stored}");
        assert_eq!(serde_json::from_str::<ApiToken>(&stored).expect("what was written"), token);
        assert!(!format!("{text:?}").contains(PREFIX));
    }

    #[test]
    fn roles_are_ordered_and_round_trip_as_text() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err());
    }
}
