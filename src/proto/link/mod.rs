//! The link: versioned JSON messages over a mutual-TLS WebSocket.
//!
//! ```text
//! agent    Hello ───────────────▶ central
//!          ◀─────────────── Welcome
//!          Checks ──────────────▶            (ready? degraded -> online)
//!          Heartbeat ───────────▶            every `heartbeat_s`
//!          ◀─────────────── Action           typed, expiring, idempotent by ID
//!          ActionDone ──────────▶            sent again on reconnection until Acknowledged
//!          Renew ───────────────▶
//!          ◀────────── Certificate
//!          Renewed ─────────────▶            (the old certificate is void)
//!          ◀──────────────── Roots           first, and when the authority changes
//!          ◀─────────── EnrolAgain           the authority was replaced without a grace time; a goodbye follows
//!          ◀──────────────── Check           an operator requests the checks; the response is Checks
//!          ◀───────────────── Spec           desired state: one entry of a section; all entries after each welcome
//!          Report ──────────────▶            reported state: one section, at each change; all sections after each welcome
//!          Output ──────────────▶            a piece of the output of a task
//!          ◀───────── OutputStored           the piece is stored: the next one may follow
//!          ◀──── Console, Shell, GuestShell, TaskInput, ContainerLogs, ContainerExec
//!                                            open a connection of its own for the bytes of a user
//!          Goodbye ─────────────▶            the agent stops: the node shuts down or reboots
//! ```
//!
//! Liveness probes are WebSocket pings, answered by the protocol itself.
//!
//! | module | content |
//! | --- | --- |
//! | `drain` | drain hooks: other schedulers of the node leave and enter service with it |
//! | `node_spec` | the desired state of a node and its report, by section |

mod drain;
mod node_spec;

pub use drain::{
    DRAIN_HOOKS, DrainEntry, DrainOrder, DrainReport, HookName, HookReport, HookState,
    MAX_DRAIN_HOOKS, MAX_DRAIN_REASON, MAX_HOOK_DETAIL,
};
pub use node_spec::{NodeReport, NodeSpec, Section, SectionReport, SpecEntry};

use super::{
    CheckReport, EnrolResponse, Facts,
    container::{ExecOrder, LogsOrder},
    log::{LogPiece, LogStored},
    shell::{GuestShellOrder, ShellOrder},
    task::{InputOrder, Output, OutputStored},
    vm::ConsoleOrder,
};
use meshd_types::{BootSessionId, NodeId, Secret, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Identifies one ordered action; the agent executes each at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub u64);

/// Messages of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromAgent {
    /// First message of every connection.
    Hello(Box<Hello>),
    /// Sign of life.
    Heartbeat(Heartbeat),
    /// Result of the readiness checks, all of them.
    Checks(Box<CheckReport>),
    /// An ordered action is executed, accepted or refused. A reboot is reported before the restart,
    /// so that `Done` of a reboot means accepted.
    ActionDone { id: ActionId, outcome: ActionOutcome },
    /// The new certificate is stored; the central node may revoke the previous one.
    Renewed,
    /// State of a section.
    Report(NodeReport),
    /// A piece of the node's log.
    Log(LogPiece),
    /// A piece of the output of a task; repeated until it is stored.
    Output(Output),
    /// Request for a new certificate, after half the lifetime of the present one.
    Renew {
        /// As in [`super::EnrolRequest`].
        csr_pem: String,
    },
    /// The agent stops, because the node shuts down or reboots. The next boot of the node is no
    /// surprise.
    Goodbye,
}

/// Messages of the central node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromCentral {
    /// Answer to [`FromAgent::Hello`].
    Welcome(Welcome),
    /// Execute an action.
    Action(ActionOrder),
    /// The outcome of an action is stored; the agent may forget it.
    Acknowledged { id: ActionId },
    /// Answer to [`FromAgent::Renew`].
    Certificate(EnrolResponse),
    /// Desired state of an entry of a section.
    Spec(NodeSpec),
    /// Connect a user to the console of a VM.
    Console(ConsoleOrder),
    /// Connect a user to a new shell of the node.
    Shell(ShellOrder),
    /// Connect a user to a login at the SSH server of a guest.
    GuestShell(GuestShellOrder),
    /// Connect a user to the standard input of a task.
    TaskInput(InputOrder),
    /// Connect a user to the log of a replica of a container.
    ContainerLogs(LogsOrder),
    /// Connect a user to a program in a replica of a container.
    ContainerExec(ExecOrder),
    /// Run the readiness checks now, and report them even if nothing changed.
    Check {
        /// ID of the request, repeated in [`CheckReport::request_id`].
        request_id: u64,
    },
    /// Output of a task is stored.
    OutputStored(OutputStored),
    /// A piece of the node's log is stored.
    LogStored(LogStored),
    /// Certificate authorities that the node trusts from now on.
    Roots {
        /// The roots of the site, PEM.
        roots_pem: String,
        /// The node's certificate is under an older root: request another one soon.
        #[serde(default)]
        renew: bool,
    },
    /// The authority was replaced without a grace time, and an operator ordered this node to enrol
    /// again. A goodbye follows.
    EnrolAgain {
        /// The roots of the site, PEM.
        roots_pem: String,
        /// One-time token of the node's present boot.
        token: Secret<String>,
    },
    /// The link ends.
    Goodbye {
        /// For the node's log.
        reason: String,
        /// Seconds before the next connection; `None` means never.
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
    /// Boot session of the agent; only the newest of the node is accepted.
    pub session: BootSessionId,
    pub facts: Facts,
}

/// Answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`super::VERSION`].
    pub version: u16,
    /// Seconds between heartbeats.
    pub heartbeat_s: u32,
    /// Clock of the central node, which defines the expiry of actions.
    #[serde(default)]
    pub now: Option<Timestamp>,
    /// The central node stores logs: the agent may send [`FromAgent::Log`].
    #[serde(default)]
    pub logs: bool,
}

/// Sign of life, with values that change quickly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// Seconds since the kernel started.
    pub uptime_s: u64,
    /// `MemAvailable`, KiB.
    pub memory_available_kib: u64,
    /// Free bytes of the root file system (tmpfs).
    pub storage_free_bytes: u64,
    /// Running workloads.
    pub workloads: u32,
    /// Present about once a minute; older agents send none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Utilisation of a node since its last measurement. Unknown values are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Busy time of all processors, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u8>,
    /// Memory that is not available, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u8>,
    /// Used space of the fullest file system: root, or that of VMs; percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_percent: Option<u8>,
    /// Received bytes a second of all physical NICs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_bytes_per_s: Option<u64>,
    /// Sent bytes a second of all physical NICs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_bytes_per_s: Option<u64>,
    /// Hottest sensor, degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u8>,
    /// Mean utilisation of the GPUs of the host's driver, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<u8>,
}

/// An action for the agent. No action runs a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionOrder {
    /// The agent executes each ID at most once, and answers a repetition with the stored outcome.
    pub id: ActionId,
    /// The only node that may execute it.
    pub node: NodeId,
    /// Not to be started after this time.
    pub expires_at: Timestamp,
    /// An unknown action is refused without effect.
    pub action: NodeAction,
}

/// All actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum NodeAction {
    /// Restart the machine; `Done` is reported before the restart and means accepted.
    Reboot,
    /// Restart by kexec, without the firmware; through the firmware if that is not possible.
    /// `Done` as for `Reboot`.
    WarmReboot,
}

/// Time for the agent to execute and report an action that it started at the last moment.
const OUTCOME_MARGIN: Duration = Duration::from_secs(10);

impl NodeAction {
    /// Returns how long after its order the agent may still start the action.
    pub const fn ttl(&self) -> Duration {
        match self {
            NodeAction::Reboot | NodeAction::WarmReboot => Duration::from_secs(20),
        }
    }

    /// Returns how long the central node waits for the outcome: longer than [`NodeAction::ttl`], so
    /// that no action runs unnoticed.
    pub fn window(&self) -> Duration {
        self.ttl() + OUTCOME_MARGIN
    }
}

/// Outcome of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ActionOutcome {
    Done,
    /// Not executed: unknown, expired, or for another node.
    Refused {
        reason: String,
    },
    Failed {
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_of_an_older_agent_has_no_usage() {
        let old = r#"{"kind":"heartbeat","uptime_s":5,"memory_available_kib":6,"storage_free_bytes":7,"workloads":8}"#;
        let message: FromAgent = serde_json::from_str(old).expect("a heartbeat");
        assert_eq!(
            serde_json::to_string(&message).expect("plain"),
            old,
            "an older central node reads it"
        );
        let usage = Usage { cpu_percent: Some(9), ..Usage::default() };
        let new = Heartbeat { usage: Some(usage), ..Heartbeat::default() };
        let text = serde_json::to_string(&new).expect("plain");
        assert!(text.ends_with(r#""usage":{"cpu_percent":9}}"#), "{text}");
        assert_eq!(serde_json::from_str::<Heartbeat>(&text).expect("its own text"), new);
    }

    #[test]
    fn action_window_is_longer_than_its_ttl() {
        let action = NodeAction::Reboot;
        assert_eq!(
            (action.ttl(), action.window()),
            (Duration::from_secs(20), Duration::from_secs(30))
        );
    }
}
