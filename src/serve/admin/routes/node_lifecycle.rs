//! Routes of the node lifecycle.

use crate::serve::admin::{
    bind_handlers::Binder,
    error::Refused,
    extract::{Body, NodeOrder, TargetNode},
    routes::{Answer, node_view},
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_api::{AcceptNic, DoctorView, Drain, DrainPolicy, Fence, NodeView, Replace, Replaced, routes as api};
use meshd_central::Shared;
use meshd_config::{Owner, vm::MAX_GRACE_S};
use meshd_model::fleet::AuditContext;
use meshd_types::failpoint;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .post(&api::REJECT_NODE, reject)
        .post(&api::QUARANTINE_NODE, quarantine)
        .post(&api::DRAIN_NODE, drain)
        .post(&api::FENCE_NODE, fence)
        .post(&api::START_NODE_MAINTENANCE, maintenance)
        .post(&api::RESUME_NODE, resume)
        .post(&api::REMOVE_NODE, remove)
        .post(&api::RUN_NODE_CHECKS, doctor)
        .post(&api::REPLACE_NODE, replace)
        .post(&api::ACCEPT_NODE_NIC, accept_nic)
}

async fn reject(TargetNode { central, id }: TargetNode, context: AuditContext) -> Answer<NodeView> {
    central.nodes.reject(id, &context).await?;
    node_view(&central, id)
}

async fn quarantine(TargetNode { central, id }: TargetNode, context: AuditContext) -> Answer<NodeView> {
    central.nodes.quarantine(id, &context).await?;
    node_view(&central, id)
}

/// Returns the drain order with its defaults. Only a stop has a grace time.
pub(crate) fn checked_drain(order: Option<Drain>) -> Result<Drain, Refused> {
    let order = order.unwrap_or_default();
    if order.grace_s.is_some_and(|seconds| seconds > MAX_GRACE_S || order.workloads == DrainPolicy::Wait) {
        let message = format!("`grace_s` goes with `workloads`: `stop`, and is at most {MAX_GRACE_S}");
        return Err(Refused::bad_request(message));
    }
    Ok(order)
}

async fn drain(
    State(central): State<Shared>,
    Path(node): Path<String>,
    context: AuditContext,
    Body(order): Body<Option<Drain>>,
) -> Answer<NodeView> {
    let Drain { workloads, grace_s } = checked_drain(order)?;
    let id = central.nodes.resolve(&node)?;
    central.nodes.drain_with(id, workloads, grace_s, &context).await?;
    node_view(&central, id)
}

async fn fence(
    context: AuditContext,
    NodeOrder { node: TargetNode { central, id }, order }: NodeOrder<Fence>,
) -> Answer<NodeView> {
    let name = node_view(&central, id)?.0.name;
    if order.confirm != name && failpoint::defends("fence-confirmation") {
        return Err(Refused::bad_request(format!("cannot fence node {id}: `confirm` is not its name, `{name}`")));
    }
    central.nodes.fence(id, &context).await?;
    node_view(&central, id)
}

async fn maintenance(TargetNode { central, id }: TargetNode, context: AuditContext) -> Answer<NodeView> {
    central.nodes.maintain(id, &context).await?;
    node_view(&central, id)
}

async fn resume(TargetNode { central, id }: TargetNode, context: AuditContext) -> Answer<NodeView> {
    central.nodes.resume(id, &context).await?;
    node_view(&central, id)
}

async fn remove(TargetNode { central, id }: TargetNode, context: AuditContext) -> Answer<NodeView> {
    central.nodes.remove(id, &context).await?;
    node_view(&central, id)
}

async fn doctor(TargetNode { central, id }: TargetNode, context: AuditContext) -> Answer<DoctorView> {
    let report = central.links.node_doctor(id, &context).await?;
    Ok(Json(DoctorView { node: id, report }))
}

async fn accept_nic(
    State(central): State<Shared>,
    Path(node): Path<String>,
    context: AuditContext,
    Body(AcceptNic { mac }): Body<AcceptNic>,
) -> Answer<NodeView> {
    if mac.0 == [0; 6] || mac.is_multicast() {
        return Err(Refused::bad_request(format!("{mac} is not the MAC address of a machine")));
    }
    let id = central.nodes.resolve(&node)?;
    central.nodes.accept_nic(id, mac, &context).await?;
    node_view(&central, id)
}

/// Moves the identity of the node in the path to replacement hardware.
async fn replace(
    context: AuditContext,
    NodeOrder { node: TargetNode { central, id: old }, order }: NodeOrder<Replace>,
) -> Answer<Replaced> {
    let new = central.nodes.resolve(&order.new)?;
    // This call must precede the removal of the old node.
    let outdated_settings = left_behind(&central, old)?;
    central.nodes.replace(old, new, &context).await?;
    let Json(node) = node_view(&central, new)?;
    Ok(Json(Replaced { node, outdated_settings }))
}

/// Returns the settings in the site file that still refer to the old hardware: addresses reserved for its NICs.
fn left_behind(central: &Shared, old: meshd_types::NodeId) -> Result<Vec<String>, Refused> {
    let macs = central.store().read(|model| model.node(old).map(|node| node.fingerprint.macs.clone()));
    let macs = macs.unwrap_or_default();
    let site = central.site();
    let reserved = site.reservations.iter().filter_map(|reservation| match reservation.owner {
        Owner::Mac(mac) if macs.contains(&mac) => Some(format!("{} is reserved for {mac}", reservation.address)),
        _ => None,
    });
    Ok(reserved.collect())
}
