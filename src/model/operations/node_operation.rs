//! The record of one node of an operation. A final state never changes, and no node starts twice.

use super::{NodeOrder, OperationState, PowerProgress, outcome::NodeOutcome};
use crate::fleet::{LONGEST_BOOT, Node, Phase};
use meshd_types::{BootSessionId, NodeId, OperationId, Timestamp};
use serde::{Deserialize, Serialize};

/// Maximum length of a reason, in characters.
const MAX_REASON: usize = 500;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum NodeOperationState {
    /// Nothing was done.
    Pending,
    /// The order was given; the node has not finished it.
    Running,
    Done,
    Failed,
    Cancelled,
}

impl NodeOperationState {
    /// All states, in the order of [`StateCounts`].
    pub const ALL: [NodeOperationState; 5] = {
        use NodeOperationState::{Cancelled, Done, Failed, Pending, Running};
        [Pending, Running, Done, Failed, Cancelled]
    };

    pub fn is_open(self) -> bool {
        matches!(self, NodeOperationState::Pending | NodeOperationState::Running)
    }
}

/// The record of one node of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOperation {
    pub operation: OperationId,
    pub node: NodeId,
    /// Name of the node when the order was accepted.
    pub name: String,
    pub state: NodeOperationState,
    /// Why the node failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which the agent of the node confirmed the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The boot session that a reboot or a power order ends. That of a node with a ticket is not on
    /// record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
    /// The newest boot session of the machine when its reboot was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_boot: Option<BootSessionId>,
    /// The kernel that a reboot ends, as `SystemFacts::kernel_boot_id`; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel_boot_id: String,
    /// Number of the action that was sent to the agent. An agent executes a number once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<u64>,
    /// Progress of an order to the BMC of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerProgress>,
}

impl NodeOperation {
    /// Creates a pending record.
    pub fn pending(operation: OperationId, node: NodeId, name: String) -> Self {
        NodeOperation {
            operation,
            node,
            name,
            state: NodeOperationState::Pending,
            reason: None,
            started_at: None,
            confirmed_at: None,
            finished_at: None,
            session: None,
            newest_boot: None,
            kernel_boot_id: String::new(),
            action: None,
            power: None,
        }
    }

    /// Starts a pending record. Returns false for any other, so that no order is executed twice.
    pub fn start(&mut self, now: Timestamp) -> bool {
        let starts = self.state == NodeOperationState::Pending;
        if starts {
            self.state = NodeOperationState::Running;
            self.started_at = Some(now);
        }
        starts
    }

    /// Starts the reboot of a node with the action of this number. `newest_boot` is the newest boot
    /// session of the machine.
    pub fn start_reboot(
        &mut self,
        action: u64,
        node: &Node,
        newest_boot: Option<BootSessionId>,
        now: Timestamp,
    ) {
        if self.start(now) {
            self.action = Some(action);
            self.session = node.boot;
            self.newest_boot = newest_boot;
            self.kernel_boot_id = kernel_boot_id(node).to_owned();
        }
    }

    /// Records that the agent of the node confirmed a running order. Returns false if nothing
    /// changed.
    pub fn confirm(&mut self, now: Timestamp) -> bool {
        let confirms = self.state == NodeOperationState::Running && self.confirmed_at.is_none();
        if confirms {
            self.confirmed_at = Some(now);
        }
        confirms
    }

    /// Ends an open record. Returns false if it is final.
    pub fn finish(&mut self, outcome: NodeOutcome, now: Timestamp) -> bool {
        if !self.state.is_open() {
            return false;
        }
        let bounded = |reason: String| Some(reason.chars().take(MAX_REASON).collect());
        (self.state, self.reason) = match outcome {
            NodeOutcome::Done => (NodeOperationState::Done, None),
            NodeOutcome::Failed(reason) => (NodeOperationState::Failed, bounded(reason)),
            NodeOutcome::Cancelled(reason) => (NodeOperationState::Cancelled, bounded(reason)),
        };
        self.finished_at = Some(now);
        true
    }

    /// True if the order was sent to the agent, which has not confirmed it.
    pub fn is_unanswered(&self) -> bool {
        self.state == NodeOperationState::Running
            && self.action.is_some()
            && self.confirmed_at.is_none()
    }

    /// Returns how a running order has ended, from the state of its node. `newest_boot` is the
    /// newest boot session of the machine.
    pub fn observe(
        &self,
        order: &NodeOrder,
        node: Option<&Node>,
        newest_boot: Option<BootSessionId>,
        now: Timestamp,
    ) -> Option<NodeOutcome> {
        if self.state != NodeOperationState::Running {
            return None;
        }
        // A machine that has not booted is no node yet.
        if self.power.as_ref().is_some_and(|power| power.machine.is_some()) {
            return None;
        }
        let Some(node) = node.filter(|node| node.phase != Phase::Removed) else {
            return Some(NodeOutcome::Cancelled("the node was removed".to_owned()));
        };
        match order {
            NodeOrder::Drain { .. } => drain_outcome(node),
            order if order.is_reboot() && self.has_rebooted(node, newest_boot) => {
                Some(NodeOutcome::Done)
            }
            order
                if order.is_reboot()
                    && matches!(node.phase, Phase::Rejected | Phase::Quarantined) =>
            {
                Some(NodeOutcome::Cancelled(format!("the node was {}", node.phase)))
            }
            order if order.is_reboot() => {
                let confirmed_at = self.confirmed_at?;
                let minutes = LONGEST_BOOT.as_secs() / 60;
                (now.distance(confirmed_at) > LONGEST_BOOT).then(|| {
                    NodeOutcome::Failed(format!(
                        "the node did not boot within {minutes} minutes; look at its console"
                    ))
                })
            }
            _ => None,
        }
    }

    /// True if this boot is not the one that the reboot ends.
    pub fn is_later_boot(&self, boot: BootSessionId) -> bool {
        self.newest_boot.or(self.session) != Some(boot)
    }

    /// True if the machine boots again since its reboot was ordered: it opened another boot session,
    /// or its agent runs on another kernel. A machine that boots from its disk opens no session.
    fn has_rebooted(&self, node: &Node, newest_boot: Option<BootSessionId>) -> bool {
        let kernel = kernel_boot_id(node);
        newest_boot.is_some_and(|newest| self.is_later_boot(newest))
            || !self.kernel_boot_id.is_empty()
                && !kernel.is_empty()
                && kernel != self.kernel_boot_id
    }
}

/// The kernel that the last hello of a node names; empty if it is not known.
fn kernel_boot_id(node: &Node) -> &str {
    node.facts.as_ref().map_or("", |facts| &facts.system.kernel_boot_id)
}

/// Returns how a running drain has ended; `None` while it runs.
fn drain_outcome(node: &Node) -> Option<NodeOutcome> {
    match node.phase {
        Phase::Maintenance => Some(NodeOutcome::Done),
        Phase::Draining => None,
        _ if node.drains => None,
        phase => Some(NodeOutcome::Cancelled(format!(
            "the node is {phase}: another order ended the drain"
        ))),
    }
}

/// Number of nodes in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts(pub [u32; 5]);

impl StateCounts {
    pub fn of(self, state: NodeOperationState) -> u32 {
        self.0[state as usize]
    }

    pub fn add(&mut self, state: NodeOperationState) {
        self.0[state as usize] += 1;
    }

    pub fn subtract(&mut self, state: NodeOperationState) {
        let count = &mut self.0[state as usize];
        *count = count.saturating_sub(1);
    }

    pub fn open(self) -> u32 {
        self.of(NodeOperationState::Pending) + self.of(NodeOperationState::Running)
    }

    pub fn total(self) -> u32 {
        self.0.iter().sum()
    }

    /// The state of the whole operation.
    pub fn state(self) -> OperationState {
        match self {
            counts if counts.open() > 0 => OperationState::Running,
            counts if counts.of(NodeOperationState::Failed) > 0 => OperationState::Failed,
            counts if counts.of(NodeOperationState::Cancelled) > 0 => OperationState::Cancelled,
            _ => OperationState::Done,
        }
    }
}
