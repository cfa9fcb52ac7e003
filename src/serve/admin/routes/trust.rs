//! Routes of enrolment tokens, the certificate authority and node certificates.

use crate::admin::{
    ApiState,
    error::Refused,
    extract::{Body, TargetNode},
    routes::{
        Answer,
        nodes::detail::{detail, node_removed},
    },
};
use axum::{
    Json,
    extract::{Path, State},
    http::{StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse as _, Response},
};
use meshd_api::{CreateToken, CreatedToken, NodeDetail, RootView, RotateCa, TokenView};
use meshd_central::{AuthorityState, RotateError, Shared, TokenError};
use meshd_model::fleet::AuditContext;
use meshd_trust::{GRACE, TrustError};
use meshd_types::Basis;
use std::time::Duration;

/// Returns a root with the number of nodes whose certificates depend on it.
fn root_view(state: AuthorityState) -> RootView {
    let AuthorityState { root, nodes } = state;
    RootView {
        active: root.until.is_none(),
        until: root.until,
        has_key: root.has_key,
        root: root.root,
        nodes,
    }
}

impl From<TokenError> for Refused {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Store(error) => error.into(),
            TokenError::Life | TokenError::DeniedUuid(_) | TokenError::Ambiguous(_) => {
                Refused::of(StatusCode::BAD_REQUEST, "bad_request", &error)
            }
            TokenError::None(_) => Refused::of(StatusCode::NOT_FOUND, "not_found", &error),
            TokenError::NotAllowed { .. } => Refused::of(StatusCode::CONFLICT, "held", &error),
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
            RotateError::Grace | RotateError::NeedsNoEnrolment => {
                (StatusCode::BAD_REQUEST, "bad_request")
            }
            RotateError::Trust(TrustError::NoRootKey { .. }) => {
                (StatusCode::CONFLICT, "no_root_key")
            }
            RotateError::Trust(_) | RotateError::Store(_) | RotateError::Interrupted => {
                (StatusCode::INTERNAL_SERVER_ERROR, "ca")
            }
        };
        Refused::of(status, code, &error)
    }
}

pub(crate) async fn tokens(State(central): State<Shared>) -> Json<Vec<TokenView>> {
    Json(central.enrolment.tickets().into_iter().map(TokenView::from).collect())
}

pub(crate) async fn create_token(
    State(state): State<ApiState>,
    context: AuditContext,
    Body(order): Body<CreateToken>,
) -> Result<Response, Refused> {
    let central = &state.central;
    let basis = match (order.node, order.basis) {
        (Some(node), None) => node_basis(central, &node)?,
        (None, Some(basis)) => basis,
        _ => {
            return Err(Refused::bad_request("a token is for a node or for another machine")
                .with_hint("name one of them"));
        }
    };
    let life = order.life_s.map_or(meshd_central::TOKEN_LIFE, Duration::from_secs);
    let (ticket, token) =
        central.enrolment.create_token(basis, life, state.boot_address(), &context).await?;
    Ok(([(CACHE_CONTROL, "no-store")], Json(CreatedToken { token: token.into(), ticket }))
        .into_response())
}

fn node_basis(central: &Shared, node: &str) -> Result<Basis, Refused> {
    let id = central.nodes.resolve(node)?;
    central.nodes.node(id).map(|node| node.basis).ok_or_else(|| node_removed(id))
}

pub(crate) async fn revoke_token(
    State(central): State<Shared>,
    Path(token): Path<String>,
    context: AuditContext,
) -> Answer<TokenView> {
    Ok(Json(central.enrolment.revoke_token(&token, &context).await?.into()))
}

pub(crate) async fn ca(State(central): State<Shared>) -> Json<Vec<RootView>> {
    Json(central.enrolment.authority_state().into_iter().map(root_view).collect())
}

pub(crate) async fn rotate_ca(
    State(central): State<Shared>,
    context: AuditContext,
    Body(RotateCa { grace_s, enrol_again }): Body<RotateCa>,
) -> Answer<Vec<RootView>> {
    let grace = grace_s.map_or(GRACE, Duration::from_secs);
    let roots = central.enrolment.rotate_authority(grace, enrol_again, &context).await?;
    Ok(Json(roots.into_iter().map(root_view).collect()))
}

pub(crate) async fn revoke_node(
    TargetNode { central, id }: TargetNode,
    context: AuditContext,
) -> Answer<NodeDetail> {
    central.nodes.revoke(id, &context).await?;
    detail(&central, id)
}
