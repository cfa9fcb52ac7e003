//! Events and effects of the link state machine.

use meshd_proto::{ActionId, CheckReport, EnrolResponse, FromAgent, FromCentral, PendingReply};
use meshd_types::{Secret, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The two clocks of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic time since a fixed moment.
    pub timer: Duration,
    /// This node's wall clock, which may be wrong.
    pub wall: Timestamp,
}

/// Renewal and expiry of a certificate, by this node's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// Half of the lifetime.
    pub renew_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Validity {
    /// Returns the validity of a certificate that was just received.
    pub fn from_response(response: &EnrolResponse, wall: Timestamp) -> Self {
        let span = |seconds| wall.after(Duration::from_secs(seconds));
        Validity { renew_at: span(response.life_s / 2), expires_at: span(response.life_s) }
    }
}

/// An event of the link state machine.
#[derive(Debug)]
pub enum Event {
    /// The agent has started, or [`super::LinkStateMachine::deadline`] is reached.
    Timer,
    /// Enrolment or renewal returned a certificate.
    Certified(EnrolResponse),
    /// The central node refused the last call.
    Refused(String),
    /// The last call reached a central node with another certificate authority.
    StaleCa(String),
    /// The last call got no usable response, or the connection broke.
    ConnectionLost(String),
    /// The link is open; no message was sent.
    Connected,
    /// A message on the link.
    Message(FromCentral),
    /// An ordered action that this agent does not know.
    UnknownAction(ActionId),
    /// A ping, a pong or an unknown message on the link.
    KeepAlive,
    /// A message on the pending connection.
    Pending(PendingReply),
    ChecksDone(CheckReport),
    RebootFailed(String),
    /// A section of the node changed, or there is a piece of a stream.
    Report(FromAgent),
}

/// An effect, which the driver executes; effects are in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// POST the token. Result: `Certified`, `Refused` or `ConnectionLost`.
    Enrol,
    /// Remove the token from its file.
    ForgetToken,
    /// POST a renewal with the present certificate. Result as for `Enrol`.
    Renew,
    /// Open a pending connection. Result: `Pending`, `Refused` or `ConnectionLost`.
    OpenPending {
        /// Why the agent has neither token nor certificate.
        reason: String,
    },
    /// Open the link. Result: `Connected`, `Refused` or `ConnectionLost`.
    OpenLink,
    /// Close the connection, and cancel the call in progress.
    Close,
    StoreCertificate(EnrolResponse),
    /// Trust these roots, and no others.
    TrustRoots(String),
    /// Store this token in the file of this boot, for [`Effect::Enrol`].
    StoreToken(Secret<String>),
    DropCertificate,
    /// Send a hello with the present facts.
    Hello,
    /// Send a heartbeat and a ping.
    Heartbeat,
    RunChecks,
    Send(FromAgent),
    /// Pass a message on that does not concern the link: desired state, or a stream.
    Deliver(FromCentral),
    /// Report the state of all sections, and output that is not acknowledged.
    ReportSections,
    /// Request a new certificate over the link.
    RequestRenewal,
    Reboot,
    /// Load the next boot and start it by kexec, or reboot as [`Effect::Reboot`].
    WarmReboot,
}
