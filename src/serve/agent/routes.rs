//! Routes of the agent API.

use super::{
    AgentApi, AgentApiError, AgentBackend, AgentConnection, console_relay, link,
    message_rate::MessageClass,
    pending,
    refusal::{Refusal, check_version},
    request::{AgentApiState, log_refusal, no_client, read, require_client},
    volumes, warm_boot,
};
use crate::{connections::limiter::Source, metrics::count_request};
use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{
        DefaultBodyLimit, Path, Request, State, WebSocketUpgrade, rejection::BytesRejection,
        ws::rejection::WebSocketUpgradeRejection,
    },
    http::{HeaderMap, StatusCode},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use meshd_proto::{EnrolRequest, EnrolResponse, RenewRequest, vm::ConsoleId};
use meshd_types::Digest;
use std::{sync::Arc, time::Duration};

/// Size of the read buffer of one WebSocket, in bytes. Small, because thousands of links are idle
/// at any time.
const READ_BUFFER: usize = 4 * 1024;

/// Time that a node waits for a free pending connection.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns all routes of the agent API.
pub(super) fn router<P: AgentBackend>(service: Arc<AgentApi<P>>) -> Router {
    warm_boot::bind(Router::new())
        .route(meshd_proto::ENROL_PATH, post(enrol::<P>))
        .route(meshd_proto::RENEW_PATH, post(renew::<P>))
        .route(meshd_proto::PENDING_PATH, get(pending::<P>))
        .route(meshd_proto::LINK_PATH, get(link::<P>))
        .route(&format!("{}/{{console}}", meshd_proto::CONSOLE_PATH), get(accept_console::<P>))
        .route(&format!("{}/{{digest}}", meshd_proto::VOLUMES_PATH), get(volume::<P>))
        .fallback(|| async { Refusal::NOT_FOUND })
        .method_not_allowed_fallback(|| async { Refusal::NOT_FOUND })
        .layer(DefaultBodyLimit::max(meshd_proto::MAX_MESSAGE))
        .layer(middleware::from_fn(count_response))
        .with_state(service)
}

async fn count_response(request: Request, next: Next) -> Response {
    let route = match request.uri().path() {
        meshd_proto::ENROL_PATH => "enrol",
        meshd_proto::RENEW_PATH => "renew",
        meshd_proto::PENDING_PATH => "pending",
        meshd_proto::LINK_PATH => "link",
        path if path.starts_with(meshd_proto::CONSOLE_PATH) => "console",
        path if path.starts_with(meshd_proto::VOLUMES_PATH) => "volumes",
        path if path.starts_with(meshd_proto::WARM_BOOT_PATH) => "warm-boot",
        _ => "none",
    };
    let response = next.run(request).await;
    count_request("agent", route, &response);
    response
}

async fn enrol<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EnrolResponse>, Refusal> {
    let request: EnrolRequest = read(body)?;
    check_version(request.version)?;
    let node = request.node;
    let response = service.central.enrol(request, connection.lan.clone()).await;
    response.map(Json).map_err(|error| {
        log_refusal("enrol", &format!("node {node} at {}", connection.from), error)
    })
}

async fn renew<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EnrolResponse>, Refusal> {
    let client = connection.client.as_deref().ok_or_else(|| no_client(&connection))?;
    let request: RenewRequest = read(body)?;
    check_version(request.version)?;
    // A revoked certificate uses nothing of the rate of its node.
    if service.central.accepts_certificate(&client.peer) {
        service.rates.admit(client.peer.node, MessageClass::Record).await;
    }
    let response = service.central.renew(&client.peer, request).await;
    response
        .map(Json)
        .map_err(|error| log_refusal("renew", &format!("node {}", client.peer.node), error))
}

async fn pending<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = limit_messages(upgrade)?;
    let permit = service.pending.enter(Source::Address(connection.from.ip()));
    let Ok(permit) = tokio::time::timeout(PERMIT_TIMEOUT, permit).await else {
        tracing::warn!(route = "pending", from = %connection.from, "too many nodes wait for approval; refused");
        return Err(Refusal::BUSY);
    };
    let task = service.tasks.token();
    Ok(upgrade.on_upgrade(move |socket| async move {
        connection.permit.settle();
        let served = pending::serve(&service, socket, &connection, &permit.meter);
        tokio::select! {
            served = permit.eviction.run_until_cancelled(served) => if served.is_none() {
                tracing::debug!(route = "pending", from = %connection.from, "evicted for another connection");
            },
            () = connection.lan.ended() => {
                tracing::debug!(route = "pending", from = %connection.from, "a segment came from another machine");
            }
        }
        drop((permit, connection, task));
    }))
}

async fn link<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let client = require_client(&service, &connection)?;
    let upgrade = limit_messages(upgrade)?;
    let node_permit = service.permits.take(client.peer.node).ok_or(Refusal::BUSY)?;
    let task = service.tasks.token();
    Ok(upgrade.on_upgrade(move |socket| async move {
        connection.permit.settle();
        link::serve(&service, socket, &client, &connection).await;
        drop((node_permit, task));
    }))
}

/// Accepts the console connection of a VM from its node.
async fn accept_console<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    Path(console): Path<u64>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let client = require_client(&service, &connection)?;
    let upgrade = limit_messages(upgrade)?;
    let end =
        service.central.console(&client.peer, ConsoleId(console)).ok_or(Refusal::NOT_FOUND)?;
    let node_permit = service.permits.take(client.peer.node).ok_or(Refusal::BUSY)?;
    let task = service.tasks.token();
    Ok(upgrade.on_upgrade(move |socket| async move {
        connection.permit.settle();
        tokio::select! {
            () = console_relay::serve(socket, end, &service.shutdown) => {}
            () = service.central.wait_until_revoked(client.peer.node) => {}
        }
        drop((node_permit, task));
    }))
}

/// Sends a volume to a node if a VM of the node uses it.
async fn volume<P: AgentBackend>(
    State(service): AgentApiState<P>,
    Extension(connection): Extension<AgentConnection>,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let client = require_client(&service, &connection)?;
    let Some(path) = service.central.volume(&client.peer, &digest) else {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "no VM of this node names it",
        ));
    };
    let permit = service.transfers.take(client.peer.node).ok_or(Refusal::BUSY)?;
    match volumes::piece(&path, &headers, permit).await {
        Ok(response) => Ok(response),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message =
                format!("there is no volume {}; add it with `meshd volume add`", digest.short());
            Err(Refusal {
                status: StatusCode::NOT_FOUND,
                code: "no_volume",
                message: message.into(),
            })
        }
        Err(error) => {
            tracing::error!(route = "volumes", volume = %path.display(), %error, "a volume cannot be read");
            Err(AgentApiError::Internal(error.to_string()).into())
        }
    }
}

fn limit_messages(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<WebSocketUpgrade, Refusal> {
    let upgrade = upgrade.map_err(|_| Refusal::bad_request("this route requires a WebSocket"))?;
    Ok(upgrade
        .max_message_size(meshd_proto::MAX_MESSAGE)
        .max_frame_size(meshd_proto::MAX_MESSAGE)
        .read_buffer_size(READ_BUFFER))
}
