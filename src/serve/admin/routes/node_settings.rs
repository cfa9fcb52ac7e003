//! Routes of boot settings.

use crate::serve::admin::{
    error::Refused,
    extract::{Body, NodeOrder, TargetNode},
    routes::{Answer, detail, node_view},
    transport::auth::Caller,
};
use axum::{
    Extension,
    extract::{Path, State},
};
use meshd_api::{AssignProfile, BootOnce, ChangeLabels, ChangeVars, NodeDetail, NodeView, Rename};
use meshd_central::Shared;
use meshd_model::fleet::AuditContext;
use meshd_types::ProfileName;

pub(crate) fn profile(text: &str) -> Result<ProfileName, Refused> {
    text.parse().map_err(|error| Refused::unreadable(&error))
}

pub(crate) async fn assign_profile(
    context: AuditContext,
    NodeOrder { node: TargetNode { central, id }, order }: NodeOrder<AssignProfile>,
) -> Answer<NodeView> {
    central.nodes.assign_profile(id, profile(&order.profile)?, &context).await?;
    node_view(&central, id)
}

/// Refuses values that are too long for a variable.
pub(crate) fn checked_vars(order: ChangeVars) -> Result<ChangeVars, Refused> {
    if let Some((name, error)) = order.set.iter().find_map(|(name, value)| Some((name, value.check().err()?))) {
        return Err(Refused::bad_request(format!("{name} {error}")).with_hint("files belong into an overlay"));
    }
    Ok(order)
}

pub(crate) async fn vars(
    State(central): State<Shared>,
    Path(node): Path<String>,
    context: AuditContext,
    Body(order): Body<ChangeVars>,
) -> Answer<NodeDetail> {
    let ChangeVars { set, unset } = checked_vars(order)?;
    let id = central.nodes.resolve(&node)?;
    central.nodes.set_vars(id, set, unset, &context).await?;
    detail(&central, id)
}

pub(crate) async fn label(
    context: AuditContext,
    NodeOrder { node: TargetNode { central, id }, order }: NodeOrder<ChangeLabels>,
) -> Answer<NodeView> {
    central.nodes.label(id, &order.change, &context).await?;
    node_view(&central, id)
}

pub(crate) async fn rename(
    context: AuditContext,
    NodeOrder { node: TargetNode { central, id }, order }: NodeOrder<Rename>,
) -> Answer<NodeView> {
    central.nodes.rename(id, &order.name, &context).await?;
    node_view(&central, id)
}

pub(crate) async fn boot_once(
    Extension(caller): Extension<Caller>,
    context: AuditContext,
    NodeOrder { node: TargetNode { central, id }, order }: NodeOrder<BootOnce>,
) -> Answer<NodeDetail> {
    if order.clear {
        central.nodes.clear_once(id, &context).await?;
    } else {
        let named = order.profile.as_deref().map(profile).transpose()?;
        central.nodes.boot_once(id, named, order.kernel_args, caller.role, &context).await?;
    }
    detail(&central, id)
}
