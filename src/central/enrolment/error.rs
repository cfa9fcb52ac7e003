//! Why the agent API refuses a request.

use meshd_store::StoreError;
use meshd_trust::TrustError;

/// Why the agent API refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentApiError {
    /// The token is unknown, used, expired or of another node. The answer does not reveal which
    /// (EN-4).
    #[error("not authorised")]
    Unauthorized,
    /// The certificate must be renewed first.
    #[error("the certificate has expired; renew it")]
    StaleCertificate,
    #[error("{0}")]
    BadRequest(String),
    #[error("the central node is busy; retry in some seconds")]
    Busy,
    /// The text is for the log and is not sent.
    #[error("{0}")]
    Internal(String),
}

impl From<StoreError> for AgentApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "cannot write the store for an agent"
        );
        AgentApiError::Internal("the store cannot be written".to_owned())
    }
}

impl From<TrustError> for AgentApiError {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::Request(why) => {
                AgentApiError::BadRequest(format!("the certificate request is refused: {why}"))
            }
            other => AgentApiError::Internal(other.to_string()),
        }
    }
}
