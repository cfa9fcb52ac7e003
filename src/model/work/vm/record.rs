//! The record of a VM: desired state, placement, and the last report of its node.
//!
//! ```text
//! create ──▶ placed on a node, which receives the complete desired state at each welcome and each change
//!              │ the node reports: starting, running, waiting, stopped, failed
//!              │ the node boots again: the VM is lost, and the restart policy decides
//! delete ──▶ releasing ──▶ the node confirms the release ──▶ the record is deleted
//! ```
//! A VM leaves its node only after the confirmation, or after the node was fenced.

use super::assigned::AssignedParts;
use meshd_config::vm::VmRequest;
use meshd_proto::{
    DiskIdentity, DiskUse,
    vm::{
        MAX_FAILURE_LINES, MAX_FAILURE_TEXT, ReleasedDisk, ReportedVmState, VmEntry, VmFailure,
        VmReport, VmTarget, VolumeName,
    },
};
use meshd_types::{BootSessionId, NodeId, SystemUuid, Timestamp, VmName, failpoint, truncate};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of former nodes in a record.
const MAX_FORMER_NODES: usize = 16;

/// The desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmDesiredState {
    Run,
    /// The VM is off and keeps its data.
    Stop,
    Release,
}

/// The placement of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub node: NodeId,
    /// Time of the placement.
    pub since: Timestamp,
    /// Boot session of the node. A diskless node loses the VM at the end of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
}

/// Start orders given to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartOrders {
    Nothing,
    /// One start was ordered, with this number.
    Once(u32),
    /// Several starts were ordered.
    Often,
}

/// The last report of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReport {
    pub state: ReportedVmState,
    /// Cause of the last failure or restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<VmFailure>,
    /// Automatic restarts in a row.
    #[serde(default)]
    pub restarts: u32,
    /// Number of the last start order; `None` if the node does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// Time of the last change of state.
    pub since: Timestamp,
    /// True if the node reported this state; false if it was derived from the loss of the node.
    pub is_reported: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// The VM as it was ordered. Only an operator changes it.
    pub request: VmRequest,
    pub desired_state: VmDesiredState,
    /// Number of the last start; see [`VmTarget::Run`].
    pub start: u32,
    /// Grace period of the last ordered stop in seconds, if not [`VmRequest::grace_s`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_s: Option<u32>,
    /// The only permitted node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_node: Option<NodeId>,
    /// Placement; `None` if no node has anything of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Last report; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<LastReport>,
    /// Reason why the node does not release the VM, or why the VM is not placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Other nodes that reported the VM and must release it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stray_nodes: BTreeSet<NodeId>,
    /// Start orders given to the node.
    pub start_orders: StartOrders,
    /// Nodes that refused the current start, with reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<NodeId, String>,
    /// The record is from a backup and unconfirmed: the VM may run elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// Nodes that the VM left without a confirmed release. Each may still run the VM, if it was
    /// removed while its machine ran.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub former_nodes: BTreeSet<NodeId>,
    /// Former nodes that did not confirm the release, with disks that must be wiped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pending_wipes: BTreeMap<NodeId, BTreeSet<DiskIdentity>>,
    /// Disks that the VM owns on its node, as reported.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<VolumeName, DiskUse>,
    /// Parts of the node that the placement assigned. Addresses stay assigned after the removal of
    /// a node that may still run the VM.
    #[serde(default, skip_serializing_if = "AssignedParts::is_empty")]
    pub assigned: AssignedParts,
    /// Time of the order.
    pub created_at: Timestamp,
}

/// A change of state that a report causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmChange {
    /// The guest runs.
    Started,
    /// The VM is off, as desired.
    Stopped,
    /// The guest was paused unexpectedly.
    Paused(String),
    /// The VM is off unexpectedly.
    Failed(String),
    /// The VM ended and restarts.
    Restarted(String),
    /// The node lost the VM without reporting its end.
    Lost(String),
}

impl Vm {
    /// Creates a VM without node.
    pub fn new(request: VmRequest, required_node: Option<NodeId>, now: Timestamp) -> Self {
        Vm {
            request,
            desired_state: VmDesiredState::Stop,
            start: 0,
            stop_grace_s: None,
            required_node,
            placement: None,
            last_report: None,
            obstacle: None,
            stray_nodes: BTreeSet::new(),
            pending_wipes: BTreeMap::new(),
            disks: BTreeMap::new(),
            start_orders: StartOrders::Nothing,
            refused: BTreeMap::new(),
            unconfirmed: false,
            former_nodes: BTreeSet::new(),
            assigned: AssignedParts::default(),
            created_at: now,
        }
    }

    /// Creates the record of an unknown VM that a node reports and must release.
    pub fn unknown(request: VmRequest, node: NodeId, now: Timestamp) -> Self {
        let mut vm = Vm::new(request, Some(node), now);
        vm.desired_state = VmDesiredState::Release;
        vm.placement = Some(Placement { node, since: now, session: None });
        vm
    }

    pub fn uuid(&self) -> SystemUuid {
        self.request.spec.uuid
    }

    pub fn name(&self) -> &VmName {
        &self.request.spec.name
    }

    pub fn node(&self) -> Option<NodeId> {
        self.placement.as_ref().map(|placement| placement.node)
    }

    /// Returns the complete desired state for the VM's node, or for another node that still has
    /// parts of the VM.
    pub fn entry_for(&self, node: NodeId) -> Option<VmEntry> {
        let target = if self.stray_nodes.contains(&node) {
            let owed = self.pending_wipes.get(&node).into_iter().flatten();
            let left =
                |disk: &DiskIdentity| ReleasedDisk { disk: disk.clone(), wipe: true, used: true };
            VmTarget::Release { disks: owed.map(left).collect() }
        } else if self.node() == Some(node) {
            let grace_s = self.request.grace_s;
            if self.unconfirmed && self.desired_state == VmDesiredState::Run {
                return None;
            }
            match self.desired_state {
                VmDesiredState::Run => VmTarget::Run {
                    spec: Box::new(self.spec()),
                    start: self.start,
                    grace_s,
                    slots: Vec::new(),
                    disks: self.disks.clone(),
                },
                VmDesiredState::Stop => {
                    VmTarget::Stop { grace_s: self.stop_grace_s.unwrap_or(grace_s) }
                }
                VmDesiredState::Release => VmTarget::Release { disks: self.left_disks() },
            }
        } else {
            return None;
        };
        Some(VmEntry { uuid: self.uuid(), desired_state: target })
    }

    /// Returns true if the node reported the VM in this boot.
    pub fn is_reported(&self) -> bool {
        self.last_report.as_ref().is_some_and(|last| last.is_reported)
    }

    /// Returns true if the report contains nothing new.
    pub fn has_reported(&self, report: &VmReport) -> bool {
        let same = |last: &LastReport| {
            last.is_reported
                && (last.state, last.restarts) == (report.state, report.restarts)
                && last.start == report.start
                && last.failure == report.failure.clone().map(bound_failure)
        };
        let known = |(name, reported): (&VolumeName, &DiskUse)| {
            self.disks.get(name).is_some_and(|disk| disk >= reported)
        };
        self.last_report.as_ref().is_some_and(same) && report.disks.iter().all(known)
    }

    /// Returns true while the VM runs or starts, according to the node, and before the first
    /// report.
    pub fn is_up(&self) -> bool {
        self.last_report.is_none() || self.is_running()
    }

    /// Returns true while the VM runs or is ordered to run.
    pub fn may_work(&self) -> bool {
        self.is_running()
            || self.desired_state == VmDesiredState::Run && !self.unconfirmed && self.is_up()
    }

    /// Returns true while the guest is paused; a start resumes it.
    pub fn is_paused(&self) -> bool {
        self.last_report.as_ref().is_some_and(|last| last.state == ReportedVmState::Paused)
    }

    /// Returns true while the node reports a QEMU process or a start of the VM.
    pub fn is_running(&self) -> bool {
        self.last_report
            .as_ref()
            .is_some_and(|last| last.state.is_live() || last.state == ReportedVmState::Waiting)
    }

    /// Returns true once the node reports the desired state of the newest order. Until then meshd
    /// repeats the order. A copy on another node, which must release it, does not count.
    pub fn is_settled(&self) -> bool {
        let off = |state: ReportedVmState| {
            matches!(state, ReportedVmState::Stopped | ReportedVmState::Failed)
        };
        match (self.desired_state, &self.last_report) {
            (VmDesiredState::Run, Some(last)) => {
                last.state != ReportedVmState::Stopping
                    && last.start.is_none_or(|start| start == self.start)
            }
            (VmDesiredState::Stop, last) => last.as_ref().is_none_or(|last| off(last.state)),
            (VmDesiredState::Run, None) | (VmDesiredState::Release, _) => false,
        }
    }

    /// Places the VM on a node, with these parts of the node.
    pub fn assign(&mut self, placement: Placement, assigned: AssignedParts) {
        self.assigned = assigned;
        self.disks.clear();
        (self.placement, self.last_report, self.obstacle) = (Some(placement), None, None);
        self.start_orders = if self.desired_state == VmDesiredState::Run {
            StartOrders::Once(self.start)
        } else {
            StartOrders::Nothing
        };
    }

    /// Orders a stop. `grace_s` replaces the grace period of the VM.
    pub fn stop(&mut self, grace_s: Option<u32>) {
        (self.desired_state, self.stop_grace_s) = (VmDesiredState::Stop, grace_s);
    }

    /// Returns true if a claim of this node that it runs the VM may be true, so that the VM must not
    /// start elsewhere. The claim of a node that never had the VM is ignored. A full set of former
    /// nodes excludes no node, because some may be missing in it.
    pub fn is_credible_claim(&self, node: NodeId) -> bool {
        let is_former =
            self.former_nodes.contains(&node) || self.former_nodes.len() >= MAX_FORMER_NODES;
        self.unconfirmed || is_former || !failpoint::defends("vm-claim")
    }

    /// Orders a start or restart.
    pub fn run(&mut self) {
        (self.desired_state, self.stop_grace_s) = (VmDesiredState::Run, None);
        self.start = self.start.saturating_add(1);
        self.start_orders = if self.start_orders == StartOrders::Nothing {
            StartOrders::Once(self.start)
        } else {
            StartOrders::Often
        };
        self.last_report = self.last_report.take().filter(|last| last.is_reported);
    }

    /// Processes a report of the node.
    pub fn apply_report(&mut self, report: VmReport, now: Timestamp) -> Option<VmChange> {
        let VmReport { state, failure, restarts, start, disks, .. } = report;
        self.apply_disk_uses(disks);
        let failure = failure.map(bound_failure);
        if std::mem::take(&mut self.unconfirmed) {
            self.obstacle = None;
        }
        let before = self.last_report.as_ref();
        let is_new_start =
            |last: &LastReport| last.start.is_some() && start.is_some() && last.start != start;
        let is_same = before.is_some_and(|last| {
            (last.state, last.restarts) == (state, restarts) && !is_new_start(last)
        });
        if is_same && before.is_some_and(|last| last.failure == failure && last.start == start) {
            return None;
        }
        let since = before.filter(|_| is_same).map_or(now, |last| last.since);
        let why = failure.as_ref().map_or_else(String::new, |failure| failure.detail.clone());
        let change = match state {
            _ if is_same => None,
            ReportedVmState::Running => Some(VmChange::Started),
            ReportedVmState::Stopped => Some(VmChange::Stopped),
            ReportedVmState::Paused => Some(VmChange::Paused(why)),
            ReportedVmState::Failed => Some(VmChange::Failed(why)),
            ReportedVmState::Waiting => Some(VmChange::Restarted(why)),
            ReportedVmState::Starting | ReportedVmState::Stopping => None,
        };
        if state == ReportedVmState::Running {
            self.refused.clear();
        }
        self.last_report =
            Some(LastReport { state, failure, restarts, start, since, is_reported: true });
        change
    }

    /// Removes the placement. The caller knows that nothing of the VM is left on the node.
    pub fn unplace(&mut self, why: String) {
        if self.former_nodes.len() < MAX_FORMER_NODES {
            self.former_nodes.extend(self.node());
        }
        (self.placement, self.last_report, self.obstacle) = (None, None, Some(why));
        self.assigned = AssignedParts::default();
        self.disks.clear();
    }
}

/// Truncates a reported failure, because the agent is not trusted.
fn bound_failure(mut failure: VmFailure) -> VmFailure {
    let cut = |text: &mut String| *text = truncate(std::mem::take(text), MAX_FAILURE_TEXT);
    cut(&mut failure.detail);
    failure.log.truncate(MAX_FAILURE_LINES);
    failure.log.iter_mut().for_each(cut);
    failure
}

#[cfg(test)]
#[path = "tests/record.rs"]
mod tests;
