//! Routes of enrolment tokens, the certificate authority and node certificates.

use crate::serve::{
    admin::{
        Plane,
        error::Refused,
        routes::{
            Answer, detail,
            orders::{Body, body},
        },
        view::NodeDetail,
    },
    central::{AuthorityState, RotateError, Shared, TokenError},
};
use axum::{
    Json,
    extract::{Path, State},
    http::{StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse as _, Response},
};
use meshd_model::fleet::AuditContext;
use meshd_proto::Ticket;
use meshd_trust::{GRACE, TokenRecord, TrustError};
use meshd_types::{Basis, Digest, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, time::Duration};
use utoipa::ToSchema;

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

impl From<AuthorityState> for RootView {
    fn from(state: AuthorityState) -> Self {
        let AuthorityState { root, nodes } = state;
        RootView { active: root.until.is_none(), until: root.until, has_key: root.has_key, root: root.root, nodes }
    }
}

impl From<TokenRecord> for TokenView {
    fn from(token: TokenRecord) -> Self {
        let TokenRecord { hash, node, made_at, expires_at, used, .. } = token;
        let (used_at, used_from) = (used.map(|used| used.at), used.and_then(|used| used.from));
        TokenView { hash, node, made_at, expires_at, used_at, used_from }
    }
}

impl From<TokenError> for Refused {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(error) => error.into(),
            TokenError::Life | TokenError::Ambiguous(_) => Refused::bad_request(error.to_string()),
            TokenError::None(_) => Refused::not_found(error.to_string()),
            TokenError::Held { .. } => Refused::new(StatusCode::CONFLICT, "held", error.to_string()),
        }
    }
}

impl From<RotateError> for Refused {
    fn from(error: RotateError) -> Self {
        let error = match error {
            RotateError::Store(error) => return error.into(),
            other => other,
        };
        let (status, code) = match &error {
            RotateError::Grace | RotateError::NeedsNoEnrolment => (StatusCode::BAD_REQUEST, "bad_request"),
            RotateError::Trust(TrustError::NoRootKey { .. }) => (StatusCode::CONFLICT, "no_root_key"),
            RotateError::Trust(_) | RotateError::Store(_) | RotateError::Interrupted => {
                (StatusCode::INTERNAL_SERVER_ERROR, "ca")
            }
        };
        Refused::new(status, code, error.to_string())
    }
}

pub(crate) async fn tokens(State(Plane { central, .. }): State<Plane>) -> Json<Vec<TokenView>> {
    Json(central.enrolment.manual_tokens().into_iter().map(TokenView::from).collect())
}

pub(crate) async fn create_token(
    State(Plane { central, told, .. }): State<Plane>,
    by: AuditContext,
    order: Body<CreateToken>,
) -> Result<Response, Refused> {
    let order = body(order)?;
    let basis = match (order.node, order.basis) {
        (Some(node), None) => known(&central, &node)?,
        (None, Some(basis)) => basis,
        _ => return Err(Refused::bad_request("a token is for a node or for another machine; name one of them")),
    };
    let life = order.life_s.map_or(crate::serve::central::TOKEN_LIFE, Duration::from_secs);
    let (ticket, token) = central.enrolment.create_token(basis, life, told, &by).await?;
    Ok(([(CACHE_CONTROL, "no-store")], Json(CreatedToken { token: token.into(), ticket })).into_response())
}

fn known(central: &Shared, node: &str) -> Result<Basis, Refused> {
    let id = central.nodes.resolve(node)?;
    let basis = central.store().read(|model| model.node(id).map(|node| node.basis.clone()));
    basis.ok_or_else(|| crate::serve::admin::routes::gone(id))
}

pub(crate) async fn revoke_token(
    State(Plane { central, .. }): State<Plane>,
    Path(token): Path<String>,
    by: AuditContext,
) -> Answer<TokenView> {
    Ok(Json(central.enrolment.revoke_token(&token, &by).await?.into()))
}

pub(crate) async fn ca(State(Plane { central, .. }): State<Plane>) -> Json<Vec<RootView>> {
    Json(central.enrolment.authority_state().into_iter().map(RootView::from).collect())
}

pub(crate) async fn rotate_ca(
    State(Plane { central, .. }): State<Plane>,
    by: AuditContext,
    order: Body<RotateCa>,
) -> Answer<Vec<RootView>> {
    let RotateCa { grace_s, enrol_again } = body(order)?;
    let grace = grace_s.map_or(GRACE, Duration::from_secs);
    let roots = central.enrolment.rotate_authority(grace, enrol_again, &by).await?;
    Ok(Json(roots.into_iter().map(RootView::from).collect()))
}

pub(crate) async fn revoke_node(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeDetail> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.revoke(id, &by).await?;
    detail(&central, id)
}
