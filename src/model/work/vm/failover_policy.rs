//! Handles a VM that its node lost or refused: restart, placement on another node, or stop with a
//! reason.

use super::record::{LastReport, StartOrders, Vm, VmChange, VmDesiredState};
use meshd_config::vm::OnNodeLoss;
use meshd_proto::vm::{ReportedVmState, RestartWhen, VmFailure, VmFailureKind};
use meshd_types::{BootSessionId, NodeId, Timestamp};

/// Maximum number of nodes that may refuse one start before the VM stays off.
pub const MAX_REFUSED: usize = 8;
/// Maximum length of a refusal, in characters.
const MAX_REASON: usize = 300;

impl Vm {
    /// Applies a complete report of the node that does not contain this VM. `serves`: the node is
    /// in service.
    pub fn apply_absence(&mut self, serves: bool, now: Timestamp) -> Option<VmChange> {
        self.is_reported().then_some(())?;
        let fetched = |last: &LastReport| last.state == ReportedVmState::Starting;
        if self.desired_state == VmDesiredState::Release
            || self.desired_state == VmDesiredState::Run
                && self.last_report.as_ref().is_some_and(fetched)
        {
            // An agent that lost its file of pending starts reports no VM that waits for volumes,
            // so the order is repeated.
            self.last_report = None;
            return None;
        }
        Some(self.lose("the node no longer reports the VM".to_owned(), serves, now))
    }

    /// Applies a reboot of the node, after which nothing of the VM is there. `serves`: the node is
    /// in service.
    pub fn apply_reboot(
        &mut self,
        session: BootSessionId,
        serves: bool,
        now: Timestamp,
    ) -> Option<VmChange> {
        let placement =
            self.placement.as_mut().filter(|placement| placement.session != Some(session))?;
        let was = placement.session.replace(session);
        // The VM was never on the node, or the node was not netbooted before.
        if was.is_none() || !self.is_reported() {
            return None;
        }
        Some(self.lose("its node booted again".to_owned(), serves, now))
    }

    /// Applies an end of the VM without a report; the restart policy decides what follows.
    fn lose(&mut self, mut why: String, serves: bool, now: Timestamp) -> VmChange {
        let again = match (self.desired_state, self.request.spec.restart.when) {
            (VmDesiredState::Run, RestartWhen::OnFailure | RestartWhen::Always) => true,
            (VmDesiredState::Run, RestartWhen::Never) => {
                self.request.on_node_loss == OnNodeLoss::Restart
            }
            (VmDesiredState::Stop | VmDesiredState::Release, _) => false,
        };
        self.last_report = None;
        if again && serves {
            self.run();
            return VmChange::Lost(format!("{why}; the VM restarts"));
        }
        if again {
            why += " and is out of service: resume the node (meshd node resume), then start the VM";
        }
        if self.desired_state == VmDesiredState::Run {
            self.desired_state = VmDesiredState::Stop;
            let failure = VmFailure::new(VmFailureKind::EndedUnseen, why.clone());
            let state = ReportedVmState::Failed;
            let failure = Some(failure);
            self.last_report = Some(LastReport {
                state,
                failure,
                restarts: 0,
                start: None,
                since: now,
                is_reported: false,
            });
        }
        VmChange::Lost(why)
    }

    /// Returns true if the VM may be placed on another node when its node is lost.
    pub fn may_move(&self) -> bool {
        self.desired_state == VmDesiredState::Run
            && !self.unconfirmed
            && self.request.on_node_loss == OnNodeLoss::Restart
            && self.required_node.is_none()
            && !self.request.is_bound()
    }

    /// Returns true if the VM must be placed without an order of an operator.
    pub fn needs_placement(&self) -> bool {
        self.placement.is_none()
            && (self.may_move()
                || self.desired_state == VmDesiredState::Run && !self.refused.is_empty())
    }

    /// Withdraws the VM from a node that refused its only start order, so nothing of the VM ran or
    /// was written there. Frees the resources. The node forgets the VM. The next node is tried,
    /// unless it would refuse for the same reason; then the VM stays off.
    pub fn withdraw_refused(&mut self) -> Option<NodeId> {
        let node = self.node()?;
        let last = self.last_report.as_ref().filter(|last| {
            let never_ran =
                last.is_reported && (last.state, last.restarts) == (ReportedVmState::Failed, 0);
            never_ran
                && last.start == Some(self.start)
                && self.start_orders == StartOrders::Once(self.start)
        })?;
        let failure =
            last.failure.as_ref().filter(|failure| failure.kind == VmFailureKind::Refused)?;
        if self.desired_state != VmDesiredState::Run {
            return None;
        }
        let is_final = failure.is_same_on_every_node();
        let why = failure.detail.chars().take(MAX_REASON).collect();
        self.refused.insert(node, why);
        let again = self.required_node.is_none() && !is_final && self.refused.len() < MAX_REFUSED;
        self.record_pending_wipes();
        self.unplace(self.refusals());
        self.stray_nodes.insert(node);
        if !again {
            self.desired_state = VmDesiredState::Stop;
        }
        Some(node)
    }

    /// Describes the nodes that refused the VM.
    pub fn refusals(&self) -> String {
        let words = self.refused.iter().map(|(node, why)| format!("{node} refused it: {why}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Turns the VM off until an operator starts it, because no other node takes it.
    pub fn stop_without_node(&mut self, why: &str) {
        self.desired_state = VmDesiredState::Stop;
        self.obstacle = Some(format!("{}; {why}", self.refusals()));
    }

    /// Discards earlier refusals, because an operator starts the VM.
    pub fn start_by_operator(&mut self) {
        self.run();
        self.refused.clear();
        if std::mem::take(&mut self.unconfirmed) || self.placement.is_none() {
            self.obstacle = None;
        }
    }

    /// Marks a record from a backup as unconfirmed. Only the node or an operator knows whether the
    /// VM runs there, elsewhere or not at all.
    pub fn mark_unconfirmed(&mut self) {
        if self.desired_state == VmDesiredState::Run {
            (self.unconfirmed, self.last_report) = (true, None);
            let why = "restored from a backup, and not reported by its node since; if it runs nowhere: meshd vm start";
            self.obstacle = Some(why.to_owned());
        }
    }
}
