//! API tokens, enrolment tokens and the roots of the certificate authority.

use meshd_proto::Ticket;
use meshd_trust::{ApiToken, Role, TokenRecord};
use meshd_types::{ApiTokenName, Basis, Digest, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;

/// Body of `api-tokens/create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateApiToken {
    /// What it shall be called.
    #[schema(value_type = String)]
    pub name: ApiTokenName,
    #[schema(value_type = String)]
    pub role: Role,
    /// How long it lives, in seconds; until it is revoked unless this is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
}

/// A token that was made; the only place where its text ever stands.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
pub struct CreatedApiToken {
    /// What is kept of it.
    pub token: ApiTokenView,
    pub secret: String,
}

/// What is kept of a token, but for its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiTokenView {
    /// What it is called.
    #[schema(value_type = String)]
    pub name: ApiTokenName,
    #[schema(value_type = String)]
    pub role: Role,
    /// When it was made.
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    /// Not honoured after this time.
    #[schema(value_type = Option<String>)]
    pub expires_at: Option<Timestamp>,
    /// Its time is over.
    pub expired: bool,
}

impl ApiTokenView {
    /// Without its hash.
    pub fn new(token: &ApiToken, now: Timestamp) -> Self {
        let ApiToken { name, role, created_at, expires_at, .. } = token.clone();
        ApiTokenView { name, role, created_at, expires_at, expired: token.is_over(now) }
    }
}

/// Body of `tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// A node that is known, by ID or name.
    #[serde(default)]
    pub node: Option<String>,
    /// What the ID of another machine is derived from.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub basis: Option<Basis>,
    /// Life in seconds; an hour unless it is given.
    #[serde(default)]
    pub life_s: Option<u64>,
}

/// A ticket that was just made. It is shown this once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// What stays of it.
    pub token: TokenView,
    /// The ticket itself.
    #[schema(value_type = Object)]
    pub ticket: Ticket,
}

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Hash of its text: its name.
    #[schema(value_type = String)]
    pub hash: Digest,
    /// The only node that may use it.
    #[schema(value_type = String)]
    pub node: NodeId,
    /// When it was made.
    #[schema(value_type = Option<String>)]
    pub made_at: Option<Timestamp>,
    /// Not to be used after this time.
    #[schema(value_type = String)]
    pub expires_at: Timestamp,
    /// When it was used.
    #[schema(value_type = Option<String>)]
    pub used_at: Option<Timestamp>,
    /// From where.
    #[schema(value_type = Option<String>)]
    pub used_from: Option<IpAddr>,
}

/// Body of `ca/rotate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RotateCa {
    /// Seconds for which the old root is trusted beside the new one.
    pub grace_s: Option<u64>,
    /// Linked nodes receive the new root and a one-time token by their links, and enrol again. Requires `grace_s` 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enrol_again: bool,
}

/// One root of the site's certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootView {
    /// Its name: the beginning of the digest of its public key.
    pub root: String,
    /// Certificates are issued under it.
    pub active: bool,
    /// Until when it is trusted; absent for the active one.
    #[schema(value_type = Option<String>)]
    pub until: Option<Timestamp>,
    /// Its private key lies in the state folder.
    pub has_key: bool,
    /// Nodes whose newest certificate is under it.
    pub nodes: usize,
}

impl From<TokenRecord> for TokenView {
    fn from(token: TokenRecord) -> Self {
        let TokenRecord { hash, node, made_at, expires_at, used, .. } = token;
        let (used_at, used_from) = (used.map(|used| used.at), used.and_then(|used| used.from));
        TokenView { hash, node, made_at, expires_at, used_at, used_from }
    }
}
