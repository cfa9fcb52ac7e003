//! Tokens of the admin API.

use crate::admin::Admin;
use meshd_model::fleet::{Audit, AuditContext};
use meshd_store::{MAX_API_TOKENS, StoreError};
use meshd_trust::{ApiToken, Role};
use meshd_types::{ApiTokenName, Digest, Secret};
use std::time::Duration;

/// Maximum lifetime of a token.
const MAX_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a token is not created or revoked. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ApiTokenError {
    #[error("cannot create API token `{0}`: the name is in use")]
    Taken(ApiTokenName),
    #[error("there is no token `{0}`")]
    None(ApiTokenName),
    #[error("cannot create an API token: there are {MAX_API_TOKENS}")]
    TooMany,
    #[error("lifetime of the token is out of range")]
    Life,
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(ApiTokenError {
    ApiTokenError::Taken(_) => "revoke that token first, or use another name";
    ApiTokenError::None(_) => "`meshd api-token list` lists all tokens";
    ApiTokenError::TooMany => "revoke some";
    ApiTokenError::Life => "use 1 second to 10 years, or omit it for no limit";
    @source ApiTokenError::Store(source) => source;
});

impl Admin {
    /// All tokens, by name.
    pub fn api_tokens(&self) -> Vec<ApiToken> {
        let mut all: Vec<ApiToken> =
            self.env.store.read(|model| model.api_tokens().cloned().collect());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the valid token with this text. Found by its hash, then compared in constant time.
    pub fn api_token(&self, text: &str) -> Option<ApiToken> {
        let hash = Digest::of(text.as_bytes());
        let now = self.env.now();
        let found = self.env.store.read(|model| model.api_token(&hash).cloned());
        found.filter(|token| token.matches(text) && !token.is_over(now))
    }

    /// True while the token with this hash is valid.
    pub fn api_token_lives(&self, hash: &Digest) -> bool {
        let now = self.env.now();
        self.env.store.read(|model| model.api_token(hash).is_some_and(|token| !token.is_over(now)))
    }

    /// Creates a token; its text is returned only here.
    pub async fn create_api_token(
        &self,
        name: ApiTokenName,
        role: Role,
        life: Option<Duration>,
        audit: &AuditContext,
    ) -> Result<(Secret<String>, ApiToken), ApiTokenError> {
        if life.is_some_and(|life| life.is_zero() || life > MAX_LIFE) {
            return Err(ApiTokenError::Life);
        }
        let now = self.env.now();
        let (text, token) =
            ApiToken::mint(self.env.random(), name, role, now, life.map(|life| now.after(life)));
        let made = self.env.store.commit(|tx| {
            let before = tx.before();
            if before.api_tokens().any(|other| other.name == token.name) {
                return Err(ApiTokenError::Taken(token.name.clone()));
            }
            if before.api_tokens().count() >= MAX_API_TOKENS {
                return Err(ApiTokenError::TooMany);
            }
            tx.put_api_token(token.clone());
            let mut record = Audit::done(now, audit.clone());
            record.target = Some(token.name.to_string());
            record.add(&format!("role {role}"));
            tx.audit(record);
            Ok::<_, ApiTokenError>(())
        });
        made.await?;
        Ok((text, token))
    }

    /// Revokes a token and ends its streams.
    pub async fn revoke_api_token(
        &self,
        name: ApiTokenName,
        audit: &AuditContext,
    ) -> Result<(), ApiTokenError> {
        let now = self.env.now();
        let revoked = self.env.store.commit(|tx| {
            let hash =
                tx.before().api_tokens().find(|token| token.name == name).map(|token| token.hash);
            tx.remove_api_token(hash.ok_or_else(|| ApiTokenError::None(name.clone()))?);
            let mut record = Audit::done(now, audit.clone());
            record.target = Some(name.to_string());
            tx.audit(record);
            Ok::<_, ApiTokenError>(())
        });
        revoked.await?;
        self.enrolment.notify_revocation();
        Ok(())
    }
}
