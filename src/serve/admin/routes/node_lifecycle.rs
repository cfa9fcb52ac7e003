//! Routes of the node life cycle.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{
        Answer,
        orders::{Body, body},
        shown,
    },
    table::{Empty, Object, Routes},
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_api::{AcceptNic, DoctorView, Drain, DrainPolicy, Fence, NodeView, Replace, Replaced};
use meshd_central::Shared;
use meshd_config::{Owner, vm::MAX_GRACE_S};
use meshd_model::fleet::{AuditContext, Verb};
use meshd_types::fail;

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .post::<Empty, Object<NodeView>, _, _>("/nodes/{node}/reject", Verb::Reject, "Reject a node", reject)
        .post::<Empty, Object<NodeView>, _, _>(
            "/nodes/{node}/quarantine",
            Verb::Quarantine,
            "Hold a node in iPXE",
            quarantine,
        )
        .post::<Object<Drain>, Object<NodeView>, _, _>(
            "/nodes/{node}/drain",
            Verb::Drain,
            "a node takes no new work",
            drain,
        )
        .post::<Object<Fence>, Object<NodeView>, _, _>(
            "/nodes/{node}/fence",
            Verb::Fence,
            "Fence a node that is powered off: revoke its credentials and release its VMs",
            fence,
        )
        .post::<Empty, Object<NodeView>, _, _>(
            "/nodes/{node}/maintenance",
            Verb::Maintenance,
            "Start maintenance of a node",
            maintenance,
        )
        .post::<Empty, Object<NodeView>, _, _>(
            "/nodes/{node}/resume",
            Verb::Resume,
            "End the maintenance of a node",
            resume,
        )
        .post::<Empty, Object<NodeView>, _, _>(
            "/nodes/{node}/remove",
            Verb::Remove,
            "Remove a node: revoke its credentials and release its resources",
            remove,
        )
        .post::<Empty, Object<DoctorView>, _, _>(
            "/nodes/{node}/doctor",
            Verb::Doctor,
            "Run the readiness checks of a node now",
            doctor,
        )
        .post::<Object<Replace>, Object<Replaced>, _, _>(
            "/nodes/{node}/replace",
            Verb::Replace,
            "Replace the hardware of a node",
            replace,
        )
        .post::<Object<AcceptNic>, Object<NodeView>, _, _>(
            "/nodes/{node}/accept-nic",
            Verb::AcceptNic,
            "Accept a new NIC of a node",
            accept_nic,
        )
}

async fn reject(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.reject(id, &by).await?;
    shown(&central, id)
}

async fn quarantine(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.quarantine(id, &by).await?;
    shown(&central, id)
}

async fn drain(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
    order: Body<Option<Drain>>,
) -> Answer<NodeView> {
    let Drain { workloads, grace_s } = body(order)?.unwrap_or_default();
    if grace_s.is_some_and(|seconds| seconds > MAX_GRACE_S || workloads == DrainPolicy::Wait) {
        let told = format!("`grace_s` goes with `workloads`: `stop`, and is at most {MAX_GRACE_S}");
        return Err(Refused::bad_request(told));
    }
    let id = central.nodes.resolve(&node)?;
    central.nodes.drain_with(id, workloads, grace_s, &by).await?;
    shown(&central, id)
}

async fn fence(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
    order: Body<Fence>,
) -> Answer<NodeView> {
    let Fence { confirm } = body(order)?;
    let id = central.nodes.resolve(&node)?;
    let name = shown(&central, id)?.0.name;
    if confirm != name && fail::defends("fence-confirmation") {
        return Err(Refused::bad_request(format!("cannot fence node {id}: `confirm` is not its name, `{name}`")));
    }
    central.nodes.fence(id, &by).await?;
    shown(&central, id)
}

async fn maintenance(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.maintain(id, &by).await?;
    shown(&central, id)
}

async fn resume(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.resume(id, &by).await?;
    shown(&central, id)
}

async fn remove(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<NodeView> {
    let id = central.nodes.resolve(&node)?;
    central.nodes.remove(id, &by).await?;
    shown(&central, id)
}

async fn doctor(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
) -> Answer<DoctorView> {
    let id = central.nodes.resolve(&node)?;
    let report = central.links.node_doctor(id, &by).await?;
    Ok(Json(DoctorView { node: id, report }))
}

async fn accept_nic(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
    order: Body<AcceptNic>,
) -> Answer<NodeView> {
    let AcceptNic { mac } = body(order)?;
    if mac.0 == [0; 6] || mac.is_multicast() {
        return Err(Refused::bad_request(format!("{mac} is not the MAC address of a machine")));
    }
    let id = central.nodes.resolve(&node)?;
    central.nodes.accept_nic(id, mac, &by).await?;
    shown(&central, id)
}

/// The node of the path is the old one.
async fn replace(
    State(Plane { central, .. }): State<Plane>,
    Path(node): Path<String>,
    by: AuditContext,
    order: Body<Replace>,
) -> Answer<Replaced> {
    let order = body(order)?;
    let (old, new) = (central.nodes.resolve(&node)?, central.nodes.resolve(&order.new)?);
    // Before it is gone.
    let left = left_behind(&central, old)?;
    central.nodes.replace(old, new, &by).await?;
    let Json(node) = shown(&central, new)?;
    Ok(Json(Replaced { node, left }))
}

/// What the site file says of the old hardware that nothing takes over: addresses by its network cards.
fn left_behind(central: &Shared, old: meshd_types::NodeId) -> Result<Vec<String>, Refused> {
    let macs = central.store().read(|model| model.node(old).map(|node| node.fingerprint.macs.clone()));
    let macs = macs.unwrap_or_default();
    let site = central.site();
    let by_card = site.reservations.iter().filter_map(|reservation| match reservation.owner {
        Owner::Mac(mac) if macs.contains(&mac) => Some(format!("{} is reserved for {mac}", reservation.address)),
        _ => None,
    });
    Ok(by_card.collect())
}
