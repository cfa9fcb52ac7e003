//! Events and actions of the link state machine.

use meshd_proto::{
    ActionId, CheckReport, EnrolResponse, FromAgent, FromCentral, PendingReply,
    log::{LogPiece, LogStored},
    task::{OutputStored, TaskOrder, TaskUpdate},
    vm::{ConsoleOrder, VmOrder, VmUpdate},
};
use meshd_types::{Secret, Timestamp};
use std::time::Duration;

/// The two clocks of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic time since a fixed moment.
    pub timer: Duration,
    /// This node's wall clock, which may be wrong.
    pub wall: Timestamp,
}

/// When a certificate is renewed and when it expires, by this node's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Half of its lifetime.
    pub renew_at: Timestamp,
    /// End of its lifetime.
    pub expires_at: Timestamp,
}

impl Life {
    /// Returns the times of a certificate that was just received.
    pub fn of(response: &EnrolResponse, wall: Timestamp) -> Self {
        let span = |seconds| wall.after(Duration::from_secs(seconds));
        Life { renew_at: span(response.life_s / 2), expires_at: span(response.life_s) }
    }
}

/// An event of the link state machine.
#[derive(Debug)]
pub enum Event {
    /// The agent has started, or the time of [`super::Machine::deadline`] has come.
    Timer,
    /// Enrolment or renewal brought a certificate.
    Certified(EnrolResponse),
    /// The central node refused the last call.
    Refused(String),
    /// The last call reached a central node with another certificate authority.
    StaleCa(String),
    /// The last call got no usable answer, or the connection broke.
    Lost(String),
    /// The link is open; no message was sent.
    Connected,
    /// A message on the link.
    Heard(FromCentral),
    /// An ordered action that this agent does not know.
    UnknownAction(ActionId),
    /// A ping or pong on the link.
    Alive,
    /// A message on the pending connection.
    Pending(PendingReply),
    /// The checks ended.
    Checked(CheckReport),
    /// The reboot did not happen.
    RebootFailed(String),
    /// Reports of virtual machines.
    Vm(VmUpdate),
    /// A piece of the node's log.
    Log(LogPiece),
    /// A task of this node changed or wrote output.
    Task(TaskUpdate),
}

/// An action of the driver; actions are executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// POST the token; answered by `Certified`, `Refused` or `Lost`.
    Enrol,
    /// Remove the token from the file, for good.
    ForgetToken,
    /// POST a renewal with the present certificate; answered as `Enrol`.
    Renew,
    /// Open a pending connection; answered by `Pending`, `Refused` or `Lost`.
    OpenPending {
        /// Why the agent has neither token nor certificate.
        reason: String,
    },
    /// Open the link; answered by `Connected`, `Refused` or `Lost`.
    OpenLink,
    /// Close the connection, and cancel the call in progress.
    Close,
    /// Store this certificate.
    Keep(EnrolResponse),
    /// Trust these roots, and no others.
    Trust(String),
    /// Store this token in the file of this boot, for [`Action::Enrol`].
    KeepToken(Secret<String>),
    /// Delete the certificate.
    DropCertificate,
    /// Send a hello with the present facts.
    Hello,
    /// Send a heartbeat and a ping.
    Heartbeat,
    /// Run the checks.
    Check,
    /// Send this message.
    Say(FromAgent),
    /// Apply the desired state of a virtual machine.
    Vm(VmOrder),
    /// Connect a virtual machine's console to the central node.
    Console(ConsoleOrder),
    /// Report the state of all virtual machines.
    ReportVms,
    /// Apply the desired state of a task.
    Task(TaskOrder),
    /// The central node stored output of a task.
    OutputStored(OutputStored),
    /// The central node stored a piece of the log.
    LogStored(LogStored),
    /// Report the state of all tasks, and output that is not acknowledged.
    ReportTasks,
    /// Ask for a new certificate over the link.
    AskRenewal,
    /// Restart the machine.
    Reboot,
}
