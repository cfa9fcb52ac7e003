//! Routes of slots.

use crate::serve::admin::{
    Plane,
    error::Refused,
    routes::{
        Answer,
        orders::{Body, body},
    },
    table::{Array, Empty, Object, Routes},
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_api::{ApproveSlot, SlotView};
use meshd_central::{Shared, SlotParts};
use meshd_model::{
    fleet::{AuditContext, Verb},
    work::{SlotId, SlotNic},
};
use meshd_trust::Role;

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .get::<Array<SlotView>, _, _>("/slots", &[], Role::Viewer, "List slots", list)
        .get::<Object<SlotView>, _, _>("/slots/{node}/{unit}", &[], Role::Viewer, "Show a slot", show)
        .post::<Object<ApproveSlot>, Object<SlotView>, _, _>(
            "/slots/{node}/{unit}/approve",
            Verb::SlotApprove,
            "Acknowledge the present state of a slot",
            approve,
        )
        .post::<Empty, Object<SlotView>, _, _>(
            "/slots/{node}/{unit}/disable",
            Verb::SlotDisable,
            "Disable a slot: it is not allocated",
            disable,
        )
        .post::<Empty, Object<SlotView>, _, _>("/slots/{node}/{unit}/enable", Verb::SlotEnable, "Enable a slot", enable)
        .post::<Empty, Object<SlotView>, _, _>(
            "/slots/{node}/{unit}/release",
            Verb::SlotRelease,
            "Retry the cleanup of a slot",
            release,
        )
}

/// The slot of a path. Its node is named by ID or name.
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
    by: AuditContext,
    order: Body<Option<ApproveSlot>>,
) -> Answer<SlotView> {
    let ApproveSlot { disk, fabric, mac, address } = body(order)?.unwrap_or_default();
    if mac.is_none() && address.is_some() {
        return Err(Refused::bad_request("slot address without MAC address: add the MAC address"));
    }
    let (id, nic) = (named(&central, id)?, mac.map(|mac| SlotNic { mac, address }));
    Ok(Json(central.workloads.approve_slot(id, SlotParts { disk, fabric, nic }, &by).await?.into()))
}

async fn disable(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: AuditContext,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.disable_slot(id, &by).await?.into()))
}

async fn enable(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: AuditContext,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.enable_slot(id, &by).await?.into()))
}

async fn release(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: AuditContext,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.workloads.release_slot(id, &by).await?.into()))
}
