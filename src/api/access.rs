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
    /// Name of the new API token.
    pub name: ApiTokenName,
    pub role: Role,
    /// Lifetime in seconds. Default: no expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
}

/// A new API token. Only this response contains the secret.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
pub struct CreatedApiToken {
    /// Record of the API token.
    pub token: ApiTokenView,
    pub secret: String,
}

/// Record of an API token, without its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiTokenView {
    /// Name of the API token.
    pub name: ApiTokenName,
    pub role: Role,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time at which the API token expires; absent without an expiry.
    pub expires_at: Option<Timestamp>,
    /// True if the API token has expired.
    pub expired: bool,
}

impl ApiTokenView {
    /// Creates the view of an API token without its hash.
    pub fn new(token: &ApiToken, now: Timestamp) -> Self {
        let ApiToken { name, role, created_at, expires_at, .. } = token.clone();
        ApiTokenView { name, role, created_at, expires_at, expired: token.is_over(now) }
    }
}

/// Body of `tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// ID or name of a known node.
    #[serde(default)]
    pub node: Option<String>,
    /// System UUID, serial number or MAC address from which the ID of an unknown machine is
    /// derived.
    #[serde(default)]
    pub basis: Option<Basis>,
    /// Lifetime in seconds. Default: 3600.
    #[serde(default)]
    pub life_s: Option<u64>,
}

/// A new ticket. Only this response contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// Record of the ticket.
    pub token: TokenView,
    #[schema(value_type = Object)]
    pub ticket: Ticket,
}

/// Record of an enrolment token, without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// SHA-256 of the token; identifies the record.
    pub hash: Digest,
    /// ID of the only node that may use the token.
    pub node: NodeId,
    /// Time of creation.
    pub created_at: Option<Timestamp>,
    /// Time at which the token expires.
    pub expires_at: Timestamp,
    /// Time at which an agent used the token.
    pub used_at: Option<Timestamp>,
    /// IP address of the agent that used the token.
    #[schema(value_type = Option<String>)]
    pub used_from: Option<IpAddr>,
}

/// Body of `ca/rotate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RotateCa {
    /// Time in seconds for which nodes trust the old root in addition to the new one.
    pub grace_s: Option<u64>,
    /// True to enrol linked nodes again: each receives the new root and a one-time token over its
    /// link. Requires `grace_s` 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enrol_again: bool,
}

/// A root of the site's certificate authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootView {
    /// Prefix of the digest of the root's public key; identifies the root.
    pub root: String,
    /// True for the active root, under which meshd issues certificates.
    pub active: bool,
    /// Time until which nodes trust the root; absent for the active root.
    pub until: Option<Timestamp>,
    /// True if the private key of the root is in the state folder.
    pub has_key: bool,
    /// Number of nodes whose newest certificate descends from the root.
    pub nodes: usize,
}

impl From<TokenRecord> for TokenView {
    fn from(token: TokenRecord) -> Self {
        let TokenRecord { hash, node, created_at, expires_at, used, .. } = token;
        let used_at = used.map(|used| used.at);
        let used_from = used.and_then(|used| used.from);
        TokenView { hash, node, created_at, expires_at, used_at, used_from }
    }
}
