//! Routes of slots.

use crate::admin::{
    ApiState, bind_handlers::Binder, error::Refused, extract::Body, routes::Answer,
};
use axum::{
    Json,
    extract::{FromRequestParts, Path, State},
    http::request::Parts,
    response::{IntoResponse as _, Response},
};
use meshd_api::{ApproveSlot, SlotView, routes as api};
use meshd_central::{Shared, SlotParts};
use meshd_model::{
    fleet::AuditContext,
    work::{SlotId, SlotNic},
};
use meshd_types::ParseError;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_SLOTS, list)
        .get(&api::GET_SLOT, show)
        .post(&api::APPROVE_SLOT, approve)
        .post(&api::DISABLE_SLOT, disable)
        .post(&api::ENABLE_SLOT, enable)
        .post(&api::RELEASE_SLOT, release)
}

/// Slot in the path of a request, whose node is an ID or a name.
struct TargetSlot {
    central: Shared,
    id: SlotId,
}

impl FromRequestParts<ApiState> for TargetSlot {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Response> {
        let path = Path::from_request_parts(parts, state).await;
        let Path(path) = path.map_err(|error| error.into_response())?;
        let id = slot_id(&state.central, path).map_err(|refused| refused.into_response())?;
        Ok(TargetSlot { central: state.central.clone(), id })
    }
}

fn slot_id(central: &Shared, (node, unit): (String, String)) -> Result<SlotId, Refused> {
    let unit = unit.parse().map_err(|error: ParseError| Refused::unreadable(&error))?;
    Ok(SlotId { node: central.nodes.resolve(&node)?, unit })
}

async fn list(State(central): State<Shared>) -> Json<Vec<SlotView>> {
    Json(central.vms.slots().into_iter().map(SlotView::from).collect())
}

async fn show(TargetSlot { central, id }: TargetSlot) -> Answer<SlotView> {
    Ok(Json(central.vms.slot(&id)?.into()))
}

async fn approve(
    State(central): State<Shared>,
    Path(path): Path<(String, String)>,
    context: AuditContext,
    Body(order): Body<Option<ApproveSlot>>,
) -> Answer<SlotView> {
    let ApproveSlot { disk, fabric, mac, address } = order.unwrap_or_default();
    if mac.is_none() && address.is_some() {
        return Err(Refused::bad_request("slot address without MAC address: add the MAC address"));
    }
    let id = slot_id(&central, path)?;
    let nic = mac.map(|mac| SlotNic { mac, address });
    Ok(Json(central.vms.approve_slot(id, SlotParts { disk, fabric, nic }, &context).await?.into()))
}

async fn disable(
    TargetSlot { central, id }: TargetSlot,
    context: AuditContext,
) -> Answer<SlotView> {
    Ok(Json(central.vms.disable_slot(id, &context).await?.into()))
}

async fn enable(TargetSlot { central, id }: TargetSlot, context: AuditContext) -> Answer<SlotView> {
    Ok(Json(central.vms.enable_slot(id, &context).await?.into()))
}

async fn release(
    TargetSlot { central, id }: TargetSlot,
    context: AuditContext,
) -> Answer<SlotView> {
    Ok(Json(central.vms.release_slot(id, &context).await?.into()))
}
