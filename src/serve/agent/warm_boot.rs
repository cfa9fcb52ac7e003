//! Routes of warm boots: plan, parts, overlay, report. The central node checks order, node and
//! wire at each request.

use super::{
    AgentApi, AgentBackend, AgentConnection, OverlayTransfer,
    message_rate::MessageClass,
    node_connections::NodePermit,
    refusal::Refusal,
    request::{AgentApiState, log_refusal, read, require_client},
    volumes,
};
use axum::{
    Extension, Json, Router,
    body::{Body, Bytes},
    extract::{Path, State, rejection::BytesRejection},
    http::HeaderMap,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use meshd_proto::warm_boot::{
    OVERLAY_DIGEST_HEADER, WarmBootAnswer, WarmBootReport, WarmBootRequest, WarmBootStep,
};
use meshd_types::Digest;
use serde::de::DeserializeOwned;
use std::{convert::Infallible, sync::Arc};
use tokio::task::spawn_blocking;

/// Adds the routes of warm boots.
pub(super) fn bind<P: AgentBackend>(router: Router<Arc<AgentApi<P>>>) -> Router<Arc<AgentApi<P>>> {
    router
        .route(meshd_proto::WARM_BOOT_PATH, post(plan::<P>))
        .route(&format!("{}/{{digest}}", meshd_proto::WARM_PARTS_PATH), get(part::<P>))
        .route(meshd_proto::WARM_OVERLAY_PATH, post(overlay::<P>))
        .route(meshd_proto::WARM_REPORT_PATH, post(report::<P>))
}

async fn plan<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<WarmBootAnswer>, Refusal> {
    let (client, request) = read_from_node::<P, WarmBootRequest>(&service, &connection, body)?;
    let node = client.peer.node;
    service.rates.admit(node, MessageClass::Record).await;
    let answer = service.central.plan_warm_boot(&client.peer, request, &connection.lan).await;
    answer.map(Json).map_err(|error| log_refusal("warm-boot", &format!("node {node}"), error))
}

async fn part<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let client = require_client(&service, &connection)?;
    let node = client.peer.node;
    let found = service.central.warm_boot_part(&client.peer, digest, &connection.lan).await;
    let found = found.map_err(|error| log_refusal("warm-boot", &format!("node {node}"), error))?;
    let path = found.ok_or(Refusal::NOT_FOUND)?;
    let permit = service.transfers.take(node).ok_or(Refusal::BUSY)?;
    volumes::piece(&path, &headers, permit).await.map_err(|error| {
        tracing::error!(route = "warm-boot", file = %path.display(), %error, "a part of an image cannot be read");
        Refusal::BUSY
    })
}

async fn overlay<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let (client, step) = read_from_node::<P, WarmBootStep>(&service, &connection, body)?;
    let node = client.peer.node;
    service.rates.admit(node, MessageClass::Record).await;
    let permit = service.transfers.take(node).ok_or(Refusal::BUSY)?;
    let opened = service.central.open_warm_overlay(&client.peer, step, &connection.lan).await;
    let transfer =
        opened.map_err(|error| log_refusal("warm-boot", &format!("node {node}"), error))?;
    let pieces = transfer.pieces.clone();
    let joined = spawn_blocking(move || {
        let bytes = pieces.concat();
        (Digest::of(&bytes), Bytes::from(bytes))
    });
    let (digest, bytes) = joined.await.map_err(|_| Refusal::BUSY)?;
    let headers = [(OVERLAY_DIGEST_HEADER, digest.to_string())];
    Ok((headers, overlay_body(bytes, transfer, permit)).into_response())
}

/// Sends the bytes, and completes the transfer when all are read from the body.
fn overlay_body(bytes: Bytes, transfer: OverlayTransfer, permit: NodePermit) -> Body {
    let state = (Some(bytes), transfer, permit);
    Body::from_stream(futures_util::stream::unfold(
        Some(state),
        |state: Option<(Option<Bytes>, OverlayTransfer, NodePermit)>| async move {
            let (bytes, transfer, permit) = state?;
            match bytes {
                Some(bytes) => Some((Ok::<_, Infallible>(bytes), Some((None, transfer, permit)))),
                None => {
                    transfer.finish().await;
                    None
                }
            }
        },
    ))
}

async fn report<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let (client, report) = read_from_node::<P, WarmBootReport>(&service, &connection, body)?;
    let node = client.peer.node;
    service.rates.admit(node, MessageClass::Record).await;
    let recorded = service.central.report_warm_boot(&client.peer, report, &connection.lan).await;
    recorded.map_err(|error| log_refusal("warm-boot", &format!("node {node}"), error))?;
    Ok(Json(serde_json::json!({})))
}

fn read_from_node<P: AgentBackend, T: DeserializeOwned>(
    service: &AgentApi<P>,
    connection: &AgentConnection,
    body: Result<Bytes, BytesRejection>,
) -> Result<(Arc<super::AgentClient>, T), Refusal> {
    Ok((require_client(service, connection)?, read(body)?))
}
