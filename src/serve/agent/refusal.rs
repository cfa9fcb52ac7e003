//! Error responses of the agent API.

use super::AgentApiError;
use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use meshd_proto::ErrorBody;
use std::borrow::Cow;

/// An error response.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: Cow<'static, str>,
}

impl Refusal {
    /// Response to every credential failure. It does not reveal which check failed.
    pub(super) const UNAUTHORIZED: Self =
        Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "not authorised");
    pub(super) const STALE: Self = Refusal::new(
        StatusCode::UNAUTHORIZED,
        "stale_certificate",
        "the certificate has expired; renew it",
    );
    pub(super) const STALE_CA: Self = Refusal::new(
        StatusCode::UNAUTHORIZED,
        "stale_ca",
        "the authority of this certificate was replaced; boot the node again, or give it a new token",
    );
    pub(super) const BUSY: Self = Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "busy",
        "the central node is busy; retry in some seconds",
    );
    pub(super) const NOT_FOUND: Self =
        Refusal::new(StatusCode::NOT_FOUND, "not_found", "no such route on the agent API");

    pub(super) const fn new(status: StatusCode, code: &'static str, message: &'static str) -> Self {
        Refusal { status, code, message: Cow::Borrowed(message) }
    }

    pub(super) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Refusal { status: StatusCode::BAD_REQUEST, code: "bad_request", message: message.into() }
    }
}

impl From<AgentApiError> for Refusal {
    fn from(error: AgentApiError) -> Self {
        match error {
            AgentApiError::Unauthorized => Refusal::UNAUTHORIZED,
            AgentApiError::StaleCertificate => Refusal::STALE,
            AgentApiError::BadRequest(message) => Refusal::bad_request(message),
            AgentApiError::Busy => Refusal::BUSY,
            AgentApiError::Internal(_) => Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the central node failed; its log says why",
            ),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = ErrorBody { code: self.code.to_owned(), message: self.message.into_owned() };
        (self.status, Json(body)).into_response()
    }
}

/// Refuses an agent whose protocol version this central node does not speak.
pub(super) fn check_version(version: u16) -> Result<(), Refusal> {
    if meshd_proto::is_supported_version(version) {
        return Ok(());
    }
    let oldest = meshd_proto::OLDEST;
    let ours = meshd_proto::VERSION;
    Err(Refusal::bad_request(format!(
        "the agent speaks version {version}, this central node versions {oldest} to {ours}"
    )))
}
