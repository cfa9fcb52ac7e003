//! Routes of orders that only one node takes.

use crate::admin::{
    bind_handlers::Binder,
    error::Refused,
    extract::{Body, NodeRequest, TargetNode},
    routes::{Answer, nodes::detail::node_view},
    transport::caller::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use meshd_api::{
    AcceptNic, DoctorView, Fence, NodeView, Rename, Replace, Replaced, WarmRebootView,
    routes as api,
};
use meshd_central::Shared;
use meshd_config::Owner;
use meshd_model::{fleet::AuditContext, operations::NodeOrder};
use meshd_types::failpoint;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .post(&api::FENCE_NODE, fence)
        .post(&api::RENAME_NODE, rename)
        .post(&api::RUN_NODE_CHECKS, doctor)
        .post(&api::REPLACE_NODE, replace)
        .post(&api::ACCEPT_NODE_NIC, accept_nic)
}

async fn rename(
    context: AuditContext,
    NodeRequest { node: TargetNode { central, id }, order }: NodeRequest<Rename>,
) -> Answer<NodeView> {
    central.nodes.rename(id, &order.name, &context).await?;
    node_view(&central, id)
}

async fn fence(
    Extension(caller): Extension<Caller>,
    context: AuditContext,
    NodeRequest { node: TargetNode { central, id }, order }: NodeRequest<Fence>,
) -> Answer<NodeView> {
    let name = node_view(&central, id)?.0.name;
    if order.confirm != name && failpoint::defends("fence-confirmation") {
        return Err(Refused::bad_request(format!(
            "cannot fence node {id}: `confirm` is not its name, `{name}`"
        )));
    }
    central.nodes.order_one(id, NodeOrder::Fence, caller.role, &context).await?;
    node_view(&central, id)
}

async fn doctor(
    TargetNode { central, id }: TargetNode,
    context: AuditContext,
) -> Answer<DoctorView> {
    let report = central.links.node_doctor(id, &context).await?;
    let warm_reboot = central.nodes.read(|fleet| {
        let records = fleet.node(id)?;
        WarmRebootView::of_cold_boot(records.node)
    });
    Ok(Json(DoctorView { node: id, report, warm_reboot }))
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
    NodeRequest { node: TargetNode { central, id: old }, order }: NodeRequest<Replace>,
) -> Answer<Replaced> {
    let new = central.nodes.resolve(&order.new)?;
    // This call must precede the removal of the old node.
    let outdated_settings = outdated_settings_of(&central, old)?;
    central.nodes.replace(old, new, &context).await?;
    let Json(node) = node_view(&central, new)?;
    Ok(Json(Replaced { node, outdated_settings }))
}

/// Returns the settings in the site file that still refer to the old hardware: addresses reserved
/// for its NICs.
fn outdated_settings_of(
    central: &Shared,
    old: meshd_types::NodeId,
) -> Result<Vec<String>, Refused> {
    let macs = central.nodes.node(old).map(|node| node.fingerprint.macs).unwrap_or_default();
    let site = central.site();
    let reserved = site.reservations.iter().filter_map(|reservation| match reservation.owner {
        Owner::Mac(mac) if macs.contains(&mac) => {
            Some(format!("{} is reserved for {mac}", reservation.address))
        }
        _ => None,
    });
    Ok(reserved.collect())
}
