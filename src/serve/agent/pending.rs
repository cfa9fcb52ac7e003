//! The pending connection: a node without token or certificate waits for approval.

use super::{
    AgentApi, AgentApiError, AgentBackend, AgentConnection,
    refusal::check_version,
    socket::{AgentSocket, Ended, SocketEvent},
};
use crate::connections::limiter::Meter;
use axum::extract::ws::WebSocket;
use futures_util::StreamExt as _;
use meshd_proto::{PendingHello, PendingReply};

/// Serves one waiting node until it is approved, rejected or gone.
pub(super) async fn serve<P: AgentBackend>(
    service: &AgentApi<P>,
    socket: WebSocket,
    connection: &AgentConnection,
    meter: &Meter,
) {
    let from = connection.from;
    let mut socket = AgentSocket::new(socket, service.central.offline_after());
    let reason = match wait(service, &mut socket, connection, meter).await {
        Ok(reason) => reason,
        Err(ended) => {
            tracing::debug!(route = "pending", %from, reason = %ended, "a waiting node disconnected");
            ended.to_string()
        }
    };
    socket.close(&reason).await;
}

async fn wait<P: AgentBackend>(
    service: &AgentApi<P>,
    socket: &mut AgentSocket,
    connection: &AgentConnection,
    meter: &Meter,
) -> Result<String, Ended> {
    let from = connection.from;
    let hello: PendingHello = socket.hello().await?;
    if let Err(refusal) = check_version(hello.version) {
        return Ok(refusal.message.into_owned());
    }
    let node = hello.node;
    let mut replies = match service.central.wait_for_approval(hello, connection.lan.clone()).await {
        Ok(replies) => replies,
        Err(error) => return refuse(socket, error).await,
    };
    // From here on, the node counts as waiting. Connections without a hello are evicted first.
    meter.request_started();
    tracing::info!(route = "pending", %node, %from, "a node waits for approval");
    loop {
        let reply = tokio::select! {
            Some(reply) = replies.next() => reply,
            ended = silence(socket) => return Err(ended),
            () = service.shutdown.cancelled() => return Ok("the central node stops; reconnect".into()),
        };
        socket.send(&reply).await?;
        match reply {
            PendingReply::Waiting { .. } => {}
            PendingReply::Approved(_) => return Ok("approved".into()),
            PendingReply::Rejected { reason } => return Ok(reason),
        }
    }
}

/// Discards messages of a waiting node, and returns the reason for the end of its connection.
async fn silence(socket: &mut AgentSocket) -> Ended {
    loop {
        match socket.next::<serde::de::IgnoredAny>().await {
            Ok(SocketEvent::Pong(_)) => {}
            Ok(SocketEvent::Message(_)) => {
                return Ended::Violation("a message from a node without approval");
            }
            Err(ended) => return ended,
        }
    }
}

async fn refuse(socket: &mut AgentSocket, error: AgentApiError) -> Result<String, Ended> {
    match error {
        AgentApiError::Internal(detail) => {
            tracing::error!(route = "pending", detail, "request failed");
            Ok("the central node failed; its log says why".into())
        }
        AgentApiError::Busy => Ok(AgentApiError::Busy.to_string()),
        refused => {
            let reason = refused.to_string();
            socket.send(&PendingReply::Rejected { reason: reason.clone() }).await?;
            Ok(reason)
        }
    }
}
