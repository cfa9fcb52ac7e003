//! Events and actions of the link state machine.

use meshd_proto::{
    CheckReport, EnrolResponse, FromAgent, FromCentral, PendingReply, TaskId,
    job::{JobNews, JobOrder, OutputKept},
    vm::{ConsoleOrder, VmNews, VmOrder},
};
use meshd_types::{Secret, Timestamp};
use std::time::Duration;

/// The two clocks of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since some fixed moment; never goes back.
    pub timer: Duration,
    /// This node's wall clock, which may be wrong.
    pub wall: Timestamp,
}

/// When a certificate is to be renewed, and when it is over, by this node's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Half of it is over.
    pub renew_at: Timestamp,
    /// All of it is over.
    pub expires_at: Timestamp,
}

impl Life {
    /// Of a certificate that was received just now.
    pub fn of(response: &EnrolResponse, wall: Timestamp) -> Self {
        let span = |seconds| wall.after(Duration::from_secs(seconds));
        Life { renew_at: span(response.life_s / 2), expires_at: span(response.life_s) }
    }
}

/// An event of the link state machine.
#[derive(Debug)]
pub enum Event {
    /// The agent has started, or a time that [`super::Machine::deadline`] named has come.
    Timer,
    /// Enrolment or renewal brought a certificate.
    Certified(EnrolResponse),
    /// The central node answered the last call with a no.
    Refused(String),
    /// The last call met a central node of another authority.
    StaleCa(String),
    /// The last call got no usable answer, or the connection is gone.
    Lost(String),
    /// The link stands; nothing was said yet.
    Connected,
    /// A message on the link.
    Heard(FromCentral),
    /// A task on the link whose action this agent does not know.
    UnknownTask(TaskId),
    /// A sign of life on the link without a message.
    Alive,
    /// A message on the pending connection.
    Pending(PendingReply),
    /// The checks have run.
    Checked(CheckReport),
    /// The machine did not go down.
    RebootFailed(String),
    /// What there is to tell of virtual machines.
    Vm(VmNews),
    /// A job of this node has changed, or wrote something.
    Job(JobNews),
}

/// What to do, in order.
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
        /// Why there is nothing better.
        reason: String,
    },
    /// Open the link; answered by `Connected`, `Refused` or `Lost`.
    OpenLink,
    /// Close whatever is open, and give up what is being opened.
    Close,
    /// Keep this certificate.
    Keep(EnrolResponse),
    /// Trust these roots, and no others.
    Trust(String),
    /// Keep this token in the file of this boot, for [`Action::Enrol`].
    KeepToken(Secret<String>),
    /// Throw the certificate away.
    DropCertificate,
    /// Say hello, with facts as they are now.
    Hello,
    /// Say that we are alive, and ping.
    Heartbeat,
    /// Run the checks.
    Check,
    Say(FromAgent),
    /// See to it that a virtual machine is as it shall be.
    Vm(VmOrder),
    /// Bring a virtual machine's console to the central node.
    Console(ConsoleOrder),
    /// Say where all virtual machines stand.
    TellVms,
    /// See to it that a job is as it shall be.
    Job(JobOrder),
    /// What a job wrote is kept.
    JobKept(OutputKept),
    /// Say where all jobs stand, and what they wrote that is not kept yet.
    TellJobs,
    /// Ask for a new certificate over the link.
    AskRenewal,
    /// Restart the machine.
    Reboot,
}
