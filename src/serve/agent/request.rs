//! What the routes of the agent API have in common: state, client, body, log of refusals.

use super::{
    AgentApi, AgentApiError, AgentBackend, AgentClient, AgentConnection, refusal::Refusal,
};
use axum::{
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use meshd_types::failpoint;
use serde::de::DeserializeOwned;
use std::sync::Arc;

pub(super) type AgentApiState<P> = State<Arc<AgentApi<P>>>;

/// Returns the client with a valid certificate. Status 401 before an upgrade means that the
/// certificate is invalid. The agent then requests a new one.
pub(super) fn require_client<P: AgentBackend>(
    service: &AgentApi<P>,
    connection: &AgentConnection,
) -> Result<Arc<AgentClient>, Refusal> {
    let client = connection.client.clone().ok_or_else(|| no_client(connection))?;
    if client.peer.expired {
        return Err(Refusal::STALE);
    }
    if service.central.accepts_certificate(&client.peer) {
        Ok(client)
    } else {
        Err(Refusal::UNAUTHORIZED)
    }
}

pub(super) fn no_client(connection: &AgentConnection) -> Refusal {
    if connection.stale.is_some() { Refusal::STALE_CA } else { Refusal::UNAUTHORIZED }
}

pub(super) fn read<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refusal> {
    let body = body.map_err(|rejection| {
        Refusal::new(rejection.status(), "bad_request", "the body is too large or broke off")
    })?;
    failpoint::record("request", &body);
    meshd_proto::json_element_limit::read(&body)
        .map_err(|unread| Refusal::bad_request(format!("the body is not read: {unread}")))
}

pub(super) fn log_refusal(route: &'static str, peer: &str, error: AgentApiError) -> Refusal {
    match &error {
        AgentApiError::Internal(detail) => {
            tracing::error!(route, who = peer, detail, "request failed")
        }
        other => tracing::info!(route, who = peer, reason = %other, "request refused"),
    }
    error.into()
}
