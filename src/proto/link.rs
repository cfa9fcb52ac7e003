//! The link: versioned JSON messages over a mutual-TLS WebSocket.
//!
//! ```text
//! agent    Hello ───────────────▶ central
//!          ◀─────────────── Welcome
//!          Checks ──────────────▶            (ready? degraded -> online)
//!          Heartbeat ───────────▶            every `heartbeat_s`
//!          ◀──────────────── Task            typed, expiring, idempotent by ID
//!          TaskDone ────────────▶            sent again on reconnection until Acknowledged
//!          Renew ───────────────▶
//!          ◀────────── Certificate
//!          Renewed ─────────────▶            (the old one is over)
//!          ◀──────────────── Roots           first, and when the authority changes
//!          ◀─────────── EnrolAgain           the authority was replaced without a grace time; a goodbye follows
//!          ◀──────────────── Check           an operator wants to know now; answered by Checks
//!          ◀─────────────────── Vm           the whole wish for one virtual machine; again after each welcome
//!          Vm ──────────────────▶            the whole state of all of them, at each change
//!          ◀────────────────── Job           the whole wish for one job on this node; again after each welcome
//!          Job ─────────────────▶            the whole state of all of them, and what they write, piece by piece
//!          ◀────────────── JobKept           a piece is kept: the next one may come
//! ```
//! Liveness probes are WebSocket pings, answered by the protocol itself.

use super::{
    CheckReport, EnrolResponse, Facts,
    job::{JobNews, JobOrder, OutputKept},
    vm::{ConsoleOrder, VmNews, VmOrder},
};
use meshd_types::{BootSessionId, NodeId, Secret, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Names one task; the agent runs each at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub u64);

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromAgent {
    /// First message of every connection.
    Hello(Box<Hello>),
    /// Still here.
    Heartbeat(Heartbeat),
    /// Result of the readiness checks, all of them.
    Checks(Box<CheckReport>),
    /// A task ended.
    TaskDone { task: TaskId, outcome: TaskOutcome },
    /// The certificate that was asked for by `Renew` is kept: the one before it is not needed any more.
    Renewed,
    /// How its virtual machines are.
    Vm(VmNews),
    /// How its jobs are, and what they write.
    Job(JobNews),
    /// Half of the certificate's life is over: a new request for the same node.
    Renew {
        /// As in [`super::EnrolRequest`].
        csr_pem: String,
    },
}

/// What the central node says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromCentral {
    /// Answer to [`FromAgent::Hello`].
    Welcome(Welcome),
    /// Do this.
    Task(Task),
    /// The outcome of a task is stored; the agent may forget it.
    Acknowledged { task: TaskId },
    /// Answer to [`FromAgent::Renew`].
    Certificate(EnrolResponse),
    /// How a virtual machine shall be.
    Vm(VmOrder),
    /// Somebody wants to sit at the console of a virtual machine.
    Console(ConsoleOrder),
    /// Run the readiness checks now, and tell them whatever they say.
    Check {
        /// Comes back in [`CheckReport::asked`].
        asked: u64,
    },
    /// How a job shall be on this node.
    Job(JobOrder),
    /// What a job wrote is kept.
    JobKept(OutputKept),
    /// Whom the node is to trust from now on.
    Roots {
        /// The roots of the site, PEM.
        roots_pem: String,
        /// The node's certificate is under an older root: ask for another one soon.
        #[serde(default)]
        renew: bool,
    },
    /// The authority was replaced without a grace time, and an operator ordered this node to enrol again. A goodbye follows.
    EnrolAgain {
        /// The roots of the site, PEM.
        roots_pem: String,
        /// One-time token of the node's present boot.
        token: Secret<String>,
    },
    /// The link ends; reconnect only after so many seconds.
    Goodbye {
        /// For the node's log.
        reason: String,
        /// Seconds to wait; `None` means never.
        retry_after_s: Option<u32>,
    },
}

/// First message of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`super::VERSION`].
    pub version: u16,
    /// Must be the node of the certificate.
    pub node: NodeId,
    /// The boot that this agent belongs to; an older one than the node's newest is refused.
    pub session: BootSessionId,
    /// Everything known of the machine.
    pub facts: Facts,
}

/// Answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`super::VERSION`].
    pub version: u16,
    /// Seconds between heartbeats.
    pub heartbeat_s: u32,
    /// The central node's clock, by which the agent judges whether a task has expired.
    #[serde(default)]
    pub now: Option<Timestamp>,
}

/// Sign of life with what changes quickly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    /// Seconds since the kernel started.
    pub uptime_s: u64,
    /// `MemAvailable`, KiB.
    pub memory_available_kib: u64,
    /// Free bytes of the root file system (tmpfs).
    pub storage_free_bytes: u64,
    /// Running workloads.
    pub workloads: u32,
}

/// Something for the agent to do. There is no task that runs a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The agent runs each ID at most once and returns the stored outcome when it comes again.
    pub task: TaskId,
    /// The only node that may run it.
    pub node: NodeId,
    /// Not to be started after this time.
    pub expires_at: Timestamp,
    /// What to do. An unknown action is refused without effect.
    pub action: TaskAction,
}

/// Every task there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum TaskAction {
    /// Restart the machine; done is reported before the machine goes down.
    Reboot,
}

/// How much longer the outcome of a task is waited for than the task may wait to be started: the agent has to run and report it.
const OUTCOME_MARGIN: Duration = Duration::from_secs(10);

impl TaskAction {
    /// Returns how long after its order the agent may still start the task.
    pub const fn ttl(&self) -> Duration {
        match self {
            TaskAction::Reboot => Duration::from_secs(20),
        }
    }

    /// Returns how long the outcome is waited for: longer than [`TaskAction::ttl`], so that no task runs that nobody waits for.
    pub fn window(&self) -> Duration {
        self.ttl() + OUTCOME_MARGIN
    }
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TaskOutcome {
    /// As asked.
    Done,
    /// Not done, without side effect: unknown, expired, for another node.
    Refused { reason: String },
    /// Tried and failed.
    Failed { reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_of_a_task_is_waited_for_longer_than_it_may_start() {
        let task = TaskAction::Reboot;
        assert_eq!((task.ttl(), task.window()), (Duration::from_secs(20), Duration::from_secs(30)));
    }
}
