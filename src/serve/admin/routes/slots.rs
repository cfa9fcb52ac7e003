//! Routes of slots.

use crate::serve::admin::{
    Plane,
    binder::Binder,
    error::Refused,
    routes::{
        Answer,
        node_settings::{Body, body},
    },
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_api::{ApproveSlot, SlotView, routes as api};
use meshd_central::{Shared, SlotParts};
use meshd_model::{
    fleet::AuditContext,
    work::{SlotId, SlotNic},
};

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_SLOTS, list)
        .get(&api::GET_SLOT, show)
        .post(&api::APPROVE_SLOT, approve)
        .post(&api::DISABLE_SLOT, disable)
        .post(&api::ENABLE_SLOT, enable)
        .post(&api::RELEASE_SLOT, release)
}

/// Returns the slot of a path, in which the node is an ID or a name.
fn named(central: &Shared, (node, unit): (String, String)) -> Result<SlotId, Refused> {
    let unit = unit.parse().map_err(|error| Refused::bad_request(format!("{error}")))?;
    Ok(SlotId { node: central.nodes.resolve(&node)?, unit })
}

async fn list(State(Plane { central, .. }): State<Plane>) -> Json<Vec<SlotView>> {
    Json(central.workloads.slots().into_iter().map(SlotView::from).collect())
}

async fn show(State(Plane { central, .. }): State<Plane>, Path(id): Path<(String, String)>) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.slot(&id)?.into()))
}

async fn approve(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    context: AuditContext,
    order: Body<Option<ApproveSlot>>,
) -> Answer<SlotView> {
    let ApproveSlot { disk, fabric, mac, address } = body(order)?.unwrap_or_default();
    if mac.is_none() && address.is_some() {
        return Err(Refused::bad_request("slot address without MAC address: add the MAC address"));
    }
    let (id, nic) = (named(&central, id)?, mac.map(|mac| SlotNic { mac, address }));
    Ok(Json(central.workloads.approve_slot(id, SlotParts { disk, fabric, nic }, &context).await?.into()))
}

async fn disable(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    context: AuditContext,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.disable_slot(id, &context).await?.into()))
}

async fn enable(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    context: AuditContext,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.enable_slot(id, &context).await?.into()))
}

async fn release(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    context: AuditContext,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.release_slot(id, &context).await?.into()))
}
