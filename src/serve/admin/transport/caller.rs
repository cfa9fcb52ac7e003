//! The caller of a request, and its role.

use meshd_central::Shared;
use meshd_model::fleet::Principal;
use meshd_trust::{ApiToken, Role};
use meshd_types::Digest;

#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    pub(crate) role: Role,
    /// Hash of the caller's token. The name alone is not unique, because a later token may reuse
    /// it.
    token: Option<Digest>,
}

impl Caller {
    /// Returns a caller at the socket.
    pub(crate) fn at_socket(uid: u32) -> Self {
        Caller { principal: Principal::Operator(uid), role: Role::Admin, token: None }
    }

    /// Returns a caller with a token.
    pub(crate) fn with(token: ApiToken) -> Self {
        Caller {
            principal: Principal::Token(token.name),
            role: token.role,
            token: Some(token.hash),
        }
    }

    /// Returns false once the token is revoked or has expired.
    pub(crate) fn still_may(&self, central: &Shared) -> bool {
        self.token.is_none_or(|token| central.admin.api_token_lives(&token))
    }

    /// Resolves once the token is revoked or has expired.
    pub(crate) async fn revoked(&self, central: &Shared) {
        match self.token {
            None => std::future::pending().await,
            Some(_) => central.enrolment.until_revoked(|| self.still_may(central)).await,
        }
    }

    /// Returns a unique identity of the caller. It distinguishes a token from an earlier token with
    /// an equal name.
    pub(crate) fn identity(&self) -> String {
        match self.token {
            None => self.principal.to_string(),
            Some(token) => format!("{} {token}", self.principal),
        }
    }
}
