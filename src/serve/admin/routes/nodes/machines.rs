//! Routes of expected machines.

use crate::admin::{bind_handlers::Binder, error::Refused, extract::Body, routes::Answer};
use axum::{Json, extract::State};
use meshd_api::{ImportMachines, ImportedMachines, MachineView, RemoveMachines, routes as api};
use meshd_central::{ImportOptions, ImportReport, MAX_BULK, Shared};
use meshd_model::fleet::AuditContext;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_MACHINES, list)
        .post(&api::IMPORT_MACHINES, import)
        .post(&api::REMOVE_MACHINES, remove)
}

async fn list(State(central): State<Shared>) -> Json<Vec<MachineView>> {
    let machines = central.nodes.expected_machines().into_iter();
    Json(machines.map(|machine| MachineView { machine }).collect())
}

async fn import(
    State(central): State<Shared>,
    context: AuditContext,
    Body(ImportMachines { machines, approve, dry_run }): Body<ImportMachines>,
) -> Answer<ImportedMachines> {
    let options = ImportOptions { approve, dry_run };
    let ImportReport { added, changed, unchanged, faults } =
        central.nodes.import_machines(&machines, options, &context).await?;
    Ok(Json(ImportedMachines { added, changed, unchanged, faults }))
}

async fn remove(
    State(central): State<Shared>,
    context: AuditContext,
    Body(RemoveMachines { macs }): Body<RemoveMachines>,
) -> Answer<Vec<MachineView>> {
    if macs.len() > MAX_BULK {
        let message = format!("cannot remove {} machines with one order", macs.len());
        return Err(Refused::bad_request(message).with_hint(format!("use at most {MAX_BULK}")));
    }
    let removed = central.nodes.remove_expected(&macs.into_iter().collect(), &context).await?;
    Ok(Json(removed.into_iter().map(|machine| MachineView { machine }).collect()))
}
