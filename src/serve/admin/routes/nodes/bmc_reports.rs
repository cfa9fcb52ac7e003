//! Routes of what the BMC of a node reports: sensors, event log, firmware, serial console.

use crate::admin::{
    ApiState,
    bind_handlers::Binder,
    error::Refused,
    routes::{
        Answer,
        vms::consoles::{SILENCE, carry},
    },
    transport::caller::Caller,
};
use axum::{
    Extension, Json,
    extract::{Path, State, WebSocketUpgrade, ws::rejection::WebSocketUpgradeRejection},
    response::Response,
};
use meshd_api::{BmcEventView, FirmwareView, SensorView, routes as api};
use meshd_central::Shared;
use meshd_model::fleet::{AuditContext, Verb};
use meshd_proto::vm::MAX_PIECE;
use meshd_types::CorrelationId;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_NODE_SENSORS, sensors)
        .get(&api::LIST_NODE_BMC_EVENTS, events)
        .get(&api::LIST_NODE_FIRMWARE, firmware)
        .get(&api::OPEN_NODE_CONSOLE, console)
        .post(&api::CLEAR_NODE_BMC_EVENTS, clear_events)
}

/// Opens the serial console of a node.
async fn console(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Extension(correlation): Extension<CorrelationId>,
    Path(node): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let upgrade = upgrade.map_err(|_| Refused::bad_request("this route requires a WebSocket"))?;
    let ApiState { central, shutdown, tasks, .. } = state;
    let context = AuditContext::new(caller.principal.clone(), Verb::NodeConsole, correlation);
    let session = central.nodes.open_serial_console(&node, &context).await?;
    let task = tasks.token();
    let upgrade = upgrade.max_message_size(MAX_PIECE).max_frame_size(MAX_PIECE);
    Ok(upgrade.on_upgrade(move |socket| async move {
        carry(socket, session, (&central, &caller), SILENCE, &shutdown).await;
        drop(task);
    }))
}

async fn sensors(
    State(central): State<Shared>,
    Path(node): Path<String>,
) -> Answer<Vec<SensorView>> {
    Ok(Json(central.nodes.sensors(&node).await?))
}

async fn events(
    State(central): State<Shared>,
    Path(node): Path<String>,
) -> Answer<Vec<BmcEventView>> {
    Ok(Json(central.nodes.bmc_events(&node).await?))
}

async fn firmware(
    State(central): State<Shared>,
    Path(node): Path<String>,
) -> Answer<Vec<FirmwareView>> {
    Ok(Json(central.nodes.firmware(&node).await?))
}

async fn clear_events(
    State(central): State<Shared>,
    Path(node): Path<String>,
    audit: AuditContext,
) -> Answer<Vec<BmcEventView>> {
    Ok(Json(central.nodes.clear_bmc_events(&node, &audit).await?))
}
