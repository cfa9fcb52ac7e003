//! Enrolment and renewal of a node's certificate.

use super::Facts;
use meshd_types::{BootSessionId, NodeId, Secret};
use serde::{Deserialize, Serialize};

/// Exchanges the one-time token of the overlay for a certificate. Node and session are those of the
/// overlay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrolRequest {
    /// [`super::VERSION`].
    pub version: u16,
    pub node: NodeId,
    pub session: BootSessionId,
    pub token: Secret<String>,
    /// PKCS #10 request, PEM, at most [`super::MAX_CSR`] bytes. Only its public key is taken from
    /// it.
    pub csr_pem: String,
}

/// A certificate for the key of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolResponse {
    /// The node's certificate, then any intermediate, PEM.
    pub certificate_pem: String,
    /// Validity in seconds from now. Not a date, because the clock of the node may be wrong.
    pub life_s: u64,
}

/// Requests a new certificate over mutual TLS with the old one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    /// [`super::VERSION`].
    pub version: u16,
    /// As in [`EnrolRequest`].
    pub csr_pem: String,
}

/// First message of a node that has neither token nor certificate. Node and session are those of
/// the overlay. The node then waits for [`PendingReply`]s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingHello {
    /// [`super::VERSION`].
    pub version: u16,
    pub node: NodeId,
    pub session: BootSessionId,
    /// As in [`EnrolRequest`].
    pub csr_pem: String,
    /// Shown to the operator.
    pub facts: Facts,
}

/// A message of the central node on a pending connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PendingReply {
    /// No decision yet; the connection stays open.
    Waiting {
        /// For the node's log.
        reason: String,
    },
    /// Approved: the certificate for the key of the hello. The connection ends.
    Approved(EnrolResponse),
    /// Refused. The connection ends; the agent must wait before it retries.
    Rejected {
        /// For the node's log.
        reason: String,
    },
}

/// Body of every refusal of the agent API. All token failures have the same body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Stable code: `unauthorized`, `stale_certificate`, `stale_ca`, `bad_request`, `not_found`,
    /// `busy`.
    pub code: String,
    pub message: String,
}
