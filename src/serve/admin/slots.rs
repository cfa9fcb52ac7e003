//! Routes of slots: what of nodes can be given to virtual machines.

use super::{
    Plane,
    error::Refused,
    orders::{Body, body},
    routes::Answer,
    table::{Many, Nothing, One, Routes},
};
use crate::fleet::{By, Verb};
use crate::serve::central::{Shared, SlotParts};
use crate::trust::Role;
use crate::wire::vm::DiskIdentity;
use crate::work::{Slot, SlotId, SlotState};
use axum::{
    Json,
    extract::{Path, State},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Body of an approval: what belongs to the slot beside its unit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveSlot {
    /// A disk of the node, by its wwid or serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub disk: Option<DiskIdentity>,
    /// A fabric device of the node. Of slots that share one, one is given at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
}

/// A slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotView {
    /// `<node>/<first function of its unit>`.
    #[schema(value_type = String)]
    pub id: SlotId,
    /// What it is.
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
    /// Somebody approved it.
    pub approved: bool,
}

impl From<Slot> for SlotView {
    fn from(slot: Slot) -> Self {
        let Slot { id, state, reason, numa, functions, approved } = slot;
        let is_approved = approved.is_some();
        let (disk, fabric) = approved.map_or((None, None), |approved| (approved.disk, approved.fabric));
        SlotView { id, state, reason, functions, numa, disk, fabric, approved: is_approved }
    }
}

pub(super) fn routes(routes: Routes) -> Routes {
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
    Ok(SlotId { node: central.resolve(&node)?, unit })
}

async fn list(State(Plane { central, .. }): State<Plane>) -> Json<Vec<SlotView>> {
    Json(central.slots().into_iter().map(SlotView::from).collect())
}

async fn show(State(Plane { central, .. }): State<Plane>, Path(id): Path<(String, String)>) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.slot(&id)?.into()))
}

async fn approve(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: By,
    order: Body<Option<ApproveSlot>>,
) -> Answer<SlotView> {
    let ApproveSlot { disk, fabric } = body(order)?.unwrap_or_default();
    let id = named(&central, id)?;
    Ok(Json(central.approve_slot(id, SlotParts { disk, fabric }, &by).await?.into()))
}

async fn disable(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: By,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.disable_slot(id, &by).await?.into()))
}

async fn enable(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: By,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.enable_slot(id, &by).await?.into()))
}

async fn release(
    State(Plane { central, .. }): State<Plane>,
    Path(id): Path<(String, String)>,
    by: By,
) -> Answer<SlotView> {
    let id = named(&central, id)?;
    Ok(Json(central.release_slot(id, &by).await?.into()))
}
