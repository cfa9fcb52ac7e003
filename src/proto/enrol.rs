//! Enrolment and renewal of a node's certificate.

use super::Facts;
use meshd_types::{BootSessionId, NodeId, Secret};
use serde::{Deserialize, Serialize};

/// First boot of a session: the token of the overlay for a certificate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrolRequest {
    /// [`super::VERSION`].
    pub version: u16,
    /// The node that the overlay names.
    pub node: NodeId,
    /// The boot session that the overlay names.
    pub session: BootSessionId,
    /// The one-time token.
    pub token: Secret<String>,
    /// PKCS #10 request, PEM, at most [`super::MAX_CSR`] bytes. Only its public key is taken from it.
    pub csr_pem: String,
}

/// A certificate for the key of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolResponse {
    /// The node's certificate, then any intermediate, PEM.
    pub certificate_pem: String,
    /// Seconds for which it is valid from now on. A span, not a date: the node's clock may be wrong.
    pub life_s: u64,
}

/// A new certificate over the old one's mutual TLS.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewRequest {
    /// [`super::VERSION`].
    pub version: u16,
    /// As in [`EnrolRequest`].
    pub csr_pem: String,
}

/// First message of a node that has neither token nor certificate. It then waits for [`PendingReply`]s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingHello {
    /// [`super::VERSION`].
    pub version: u16,
    /// The node that the overlay names.
    pub node: NodeId,
    /// The boot session that the overlay names.
    pub session: BootSessionId,
    /// As in [`EnrolRequest`].
    pub csr_pem: String,
    /// For the operator who has to decide.
    pub facts: Facts,
}

/// What the central node says on a pending connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PendingReply {
    /// Nobody has decided yet; keep the connection.
    Waiting {
        /// For the node's log.
        reason: String,
    },
    /// Approved: the certificate for the key of the hello. The connection ends.
    Approved(EnrolResponse),
    /// Refused. The connection ends; asking again at once is useless.
    Rejected {
        /// For the node's log.
        reason: String,
    },
}

/// Body of every refusal on the agent plane. All token failures give one and the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Stable, for programs: `unauthorized`, `stale_certificate`, `stale_ca`, `bad_request`, `not_found`, `busy`.
    pub code: String,
    /// For people.
    pub message: String,
}
