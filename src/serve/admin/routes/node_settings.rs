//! Routes of boot settings.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{Answer, detail, node_view},
    transport::auth::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State, rejection::JsonRejection},
};
use meshd_api::{AssignProfile, BootOnce, ChangeLabels, ChangeVars, NodeDetail, NodeView, Rename};
use meshd_model::fleet::AuditContext;
use meshd_types::ProfileName;

pub(crate) type Body<T> = Result<Json<T>, JsonRejection>;

pub(crate) fn body<T>(body: Body<T>) -> Result<T, Refused> {
    body.map(|Json(body)| body).map_err(|error| Refused::bad_request(error.body_text()))
}

pub(crate) fn profile(text: &str) -> Result<ProfileName, Refused> {
    text.parse().map_err(|error| Refused::bad_request(format!("{error}")))
}

pub(crate) async fn assign_profile(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    context: AuditContext,
    order: Body<AssignProfile>,
) -> Answer<NodeView> {
    let order = body(order)?;
    let id = central.nodes.resolve(&node)?;
    central.nodes.assign_profile(id, profile(&order.profile)?, &context).await?;
    node_view(&central, id)
}

/// Refuses values that are too long for a variable.
pub(crate) fn checked_vars(order: ChangeVars) -> Result<ChangeVars, Refused> {
    if let Some((name, error)) = order.set.iter().find_map(|(name, value)| Some((name, value.check().err()?))) {
        return Err(Refused::bad_request(format!("{name} {error}; files belong into an overlay")));
    }
    Ok(order)
}

pub(crate) async fn vars(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    context: AuditContext,
    order: Body<ChangeVars>,
) -> Answer<NodeDetail> {
    let ChangeVars { set, unset } = checked_vars(body(order)?)?;
    let id = central.nodes.resolve(&node)?;
    central.nodes.set_vars(id, set, unset, &context).await?;
    detail(&central, id)
}

pub(crate) async fn label(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    context: AuditContext,
    order: Body<ChangeLabels>,
) -> Answer<NodeView> {
    let ChangeLabels { change } = body(order)?;
    let id = central.nodes.resolve(&node)?;
    central.nodes.label(id, &change, &context).await?;
    node_view(&central, id)
}

pub(crate) async fn rename(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    context: AuditContext,
    order: Body<Rename>,
) -> Answer<NodeView> {
    let Rename { name } = body(order)?;
    let id = central.nodes.resolve(&node)?;
    central.nodes.rename(id, &name, &context).await?;
    node_view(&central, id)
}

pub(crate) async fn boot_once(
    State(Plane { central, .. }): State<Plane>,
    Extension(caller): Extension<Caller>,
    Path(node): Path<String>,
    context: AuditContext,
    order: Body<BootOnce>,
) -> Answer<NodeDetail> {
    let order = body(order)?;
    let id = central.nodes.resolve(&node)?;
    if order.clear {
        central.nodes.clear_once(id, &context).await?;
    } else {
        let named = order.profile.as_deref().map(profile).transpose()?;
        central.nodes.boot_once(id, named, order.kernel_args, caller.role, &context).await?;
    }
    detail(&central, id)
}
