//! The pending connection: a node without token or certificate waits for approval.

use super::{
    AgentApi, AgentSettings, PlaneError, Ticket,
    routes::check_version,
    socket::{AgentSocket, Ended},
};
use crate::serve::limiter::Meter;
use axum::extract::ws::WebSocket;
use meshd_proto::{PendingHello, PendingReply};
use std::net::SocketAddr;

/// Holds one waiting node until it is approved, rejected or gone.
pub(super) async fn serve<P: AgentSettings>(service: &AgentApi<P>, socket: WebSocket, from: SocketAddr, meter: &Meter) {
    let mut socket = AgentSocket::new(socket, service.plane.offline_after());
    let reason = match wait(service, &mut socket, from, meter).await {
        Ok(reason) => reason,
        Err(ended) => {
            tracing::debug!(route = "pending", %from, reason = %ended, "a waiting node is gone");
            ended.to_string()
        }
    };
    socket.close(&reason).await;
}

async fn wait<P: AgentSettings>(
    service: &AgentApi<P>,
    socket: &mut AgentSocket,
    from: SocketAddr,
    meter: &Meter,
) -> Result<String, Ended> {
    let hello: PendingHello = socket.hello().await?;
    if let Err(refusal) = check_version(hello.version) {
        return Ok(refusal.message.into_owned());
    }
    let node = hello.node;
    let mut ticket = match service.plane.pending(hello, from.ip()).await {
        Ok(ticket) => ticket,
        Err(error) => return refuse(socket, error).await,
    };
    // From here on it is a node that waits; those that never said hello lose their places first.
    meter.asked();
    tracing::info!(route = "pending", %node, %from, "a node waits for approval");
    loop {
        let reply = tokio::select! {
            reply = ticket.next() => reply,
            ended = silence(socket) => return Err(ended),
            () = service.shutdown.cancelled() => return Ok("the central node stops; come again".into()),
        };
        socket.send(&reply).await?;
        match reply {
            PendingReply::Waiting { .. } => {}
            PendingReply::Approved(_) => return Ok("approved".into()),
            PendingReply::Rejected { reason } => return Ok(reason),
        }
    }
}

/// A node that waits has nothing to say; only the end of its connection is of interest.
async fn silence(socket: &mut AgentSocket) -> Ended {
    loop {
        match socket.next::<serde::de::IgnoredAny>().await {
            Ok(super::socket::Heard::Pong(_)) => {}
            Ok(super::socket::Heard::Message(_)) => return Ended::Violation("a message from a node that has to wait"),
            Err(ended) => return ended,
        }
    }
}

async fn refuse(socket: &mut AgentSocket, error: PlaneError) -> Result<String, Ended> {
    match error {
        PlaneError::Internal(detail) => {
            tracing::error!(route = "pending", detail, "request failed");
            Ok("the central node failed; its log says why".into())
        }
        PlaneError::Busy => Ok(PlaneError::Busy.to_string()),
        refused => {
            let reason = refused.to_string();
            socket.send(&PendingReply::Rejected { reason: reason.clone() }).await?;
            Ok(reason)
        }
    }
}
