//! Routes of slots.

use crate::serve::{
    admin::{
        Plane,
        error::Refused,
        routes::{
            Answer,
            orders::{Body, body},
        },
        table::{Many, Nothing, One, Routes},
    },
    central::{Shared, SlotParts},
};
use axum::{
    Json,
    extract::{Path, State},
};
use meshd_model::{
    fleet::{AuditContext, Verb},
    work::{Near, Pick, Slot, SlotCard, SlotId, SlotState},
};
use meshd_proto::vm::DiskIdentity;
use meshd_trust::Role;
use meshd_types::MacAddr;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};
use utoipa::ToSchema;

/// Body of an approval: what belongs to the slot beside its unit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveSlot {
    /// A disk of the node, by its wwid or serial number; or `nearest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub disk: Option<Pick<DiskIdentity>>,
    /// A fabric device of the node, or `nearest`. Of slots that share one, one is given at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub fabric: Option<Pick<String>>,
    /// The MAC address of the card of whoever has it, where that machine's file says `slot = true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub mac: Option<MacAddr>,
    /// Its IPv4 address in a network of the site. It needs `mac`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotView {
    /// `<node>/<first function of its unit>`.
    #[schema(value_type = String)]
    pub id: SlotId,
    #[schema(value_type = String)]
    pub state: SlotState,
    /// Why, where that needs a word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Functions of its unit by address, with their IDs.
    pub functions: BTreeMap<String, String>,
    /// NUMA node of its unit.
    pub numa: Option<u32>,
    /// The disk that belongs to it.
    #[schema(value_type = Option<String>)]
    pub disk: Option<DiskIdentity>,
    /// The fabric device that belongs to it.
    pub fabric: Option<String>,
    /// The addresses that belong to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub mac: Option<MacAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// The disk that is nearest to its unit, as its node tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_disk: Option<String>,
    /// The fabric device that is nearest to its unit, as its node tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_fabric: Option<String>,
    /// What of it is on another NUMA node than its unit: of what belongs to it, or of what is nearest while nobody approved it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mismatch: String,
    /// Somebody approved it.
    pub approved: bool,
}

impl From<Slot> for SlotView {
    fn from(slot: Slot) -> Self {
        let Slot { id, state, reason, numa, functions, approved, near, mismatch } = slot;
        let is_approved = approved.is_some();
        let card = approved.as_ref().and_then(|approved| approved.card);
        let (disk, fabric) = approved.map_or((None, None), |approved| (approved.disk, approved.fabric));
        let Near { disk: near_disk, fabric: near_fabric } = near;
        SlotView {
            id,
            state,
            reason,
            functions,
            numa,
            disk,
            fabric,
            mac: card.map(|card| card.mac),
            address: card.and_then(|card| card.address),
            near_disk,
            near_fabric,
            mismatch,
            approved: is_approved,
        }
    }
}

pub(crate) fn routes(routes: Routes) -> Routes {
    routes
        .see::<Many<SlotView>, _, _>("/slots", &[], Role::Viewer, "what of nodes can be given away", list)
        .see::<One<SlotView>, _, _>("/slots/{node}/{unit}", &[], Role::Viewer, "one slot", show)
        .order::<One<ApproveSlot>, One<SlotView>, _, _>(
            "/slots/{node}/{unit}/approve",
            Verb::SlotApprove,
            "let a slot be given as it is now",
            approve,
        )
        .order::<Nothing, One<SlotView>, _, _>(
            "/slots/{node}/{unit}/disable",
            Verb::SlotDisable,
            "keep a slot from being given",
            disable,
        )
        .order::<Nothing, One<SlotView>, _, _>(
            "/slots/{node}/{unit}/enable",
            Verb::SlotEnable,
            "let a disabled slot be given again",
            enable,
        )
        .order::<Nothing, One<SlotView>, _, _>(
            "/slots/{node}/{unit}/release",
            Verb::SlotRelease,
            "clean a slot up again that could not be",
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
        return Err(Refused::bad_request("an address without a MAC address is no card's"));
    }
    let (id, card) = (named(&central, id)?, mac.map(|mac| SlotCard { mac, address }));
    Ok(Json(central.workloads.approve_slot(id, SlotParts { disk, fabric, card }, &by).await?.into()))
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
