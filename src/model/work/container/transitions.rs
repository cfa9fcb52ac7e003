//! Orders, reports of nodes, and losses of nodes.

use super::{Container, ContainerGoal, Replica, ReplicaStatus};
use crate::work::{MAX_REFUSED, Placement};
use meshd_proto::container::{
    ContainerDesiredState, ContainerEntry, ContainerFault, MAX_FAULT_DETAIL, ReplicaReport,
    ReplicaSpec, ReplicaState,
};
use meshd_types::{BootSessionId, NodeId, Timestamp, failpoint};
use std::collections::BTreeMap;

/// Maximum length of the reason of a node in a record, in characters.
const MAX_REASON: usize = 300;
/// Maximum number of starts that a backup does not know. A node that lies must not use up the
/// numbers.
const MAX_UNKNOWN_STARTS: u32 = 10_000;
/// Why an unconfirmed replica is not ordered to run.
pub const UNCONFIRMED: &str = "restored from a backup, and not reported by its node since; if it runs nowhere: meshd container start";

/// A change of a replica that is an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaChange {
    Runs,
    Healthy,
    Unhealthy,
    /// The program ended and restarts.
    Restarts {
        code: u8,
        /// Why, if the node knows it.
        why: Option<String>,
    },
    Exited {
        code: u8,
    },
    Failed(String),
    /// The program ended with its node.
    Lost(String),
}

impl Container {
    /// Marks a record from a backup as unconfirmed. Only the node or an operator knows whether a
    /// replica runs there, elsewhere or not at all.
    pub fn mark_unconfirmed(&mut self) {
        if self.desired_state == ContainerGoal::Release {
            return;
        }
        for replica in &mut self.replicas {
            // Also one that is stopped in the backup: it may have been started since.
            replica.unconfirmed = true;
            // A program that ended is still not run again.
            replica.last_report.take_if(|status| !status.state.has_ended());
        }
    }

    /// Returns true if another node than that of the record may run a replica, because the record is
    /// from a backup.
    pub fn is_unconfirmed(&self, index: usize) -> bool {
        let replicas = match self.replicas.get(index) {
            Some(replica) => std::slice::from_ref(replica),
            // More replicas than on record belong to a later container of the same name.
            None => &self.replicas[..],
        };
        self.desired_state != ContainerGoal::Release
            && replicas.iter().any(|replica| replica.unconfirmed)
    }

    /// Orders all replicas to run. One that does not run starts again; refusals are forgotten.
    /// Unconfirmed replicas run nowhere: an operator says so.
    pub fn start(&mut self) {
        self.start_except(&BTreeMap::new());
    }

    /// As [`Container::start`], except for unconfirmed replicas that may run elsewhere, with
    /// reasons. These go on waiting.
    pub fn start_except(&mut self, elsewhere: &BTreeMap<usize, String>) {
        let was_stopped = self.desired_state != ContainerGoal::Run;
        self.desired_state = ContainerGoal::Run;
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            if let Some(why) = elsewhere.get(&index).filter(|_| replica.unconfirmed) {
                replica.obstacle = Some(why.clone());
                continue;
            }
            replica.refused.clear();
            replica.obstacle = None;
            replica.is_held = false;
            let is_ordered_again = was_stopped || replica.has_ended();
            let reported = replica.last_report.as_ref().map_or(0, |status| status.run);
            let is_behind = reported > replica.run;
            replica.catch_up(reported);
            if std::mem::take(&mut replica.unconfirmed) {
                // Its node ignores numbers below the last one that it executed.
                replica.run = replica.run.saturating_add(MAX_UNKNOWN_STARTS);
            } else if is_ordered_again || is_behind {
                replica.run = replica.run.saturating_add(1);
            }
        }
    }

    /// Orders all processes to end. A replica without a node stays without one.
    pub fn stop(&mut self) {
        self.desired_state = ContainerGoal::Stop;
    }

    /// Orders all nodes to release everything.
    pub fn release(&mut self) {
        self.desired_state = ContainerGoal::Release;
    }

    /// Returns the desired state of the replicas on a node. One that must not run before it is
    /// confirmed has none.
    pub fn entries_for(&self, node: NodeId) -> impl Iterator<Item = ContainerEntry> {
        self.replicas_on(node).filter_map(|index| {
            let desired_state = self.desired_state_of(&self.replicas[index])?;
            Some(ContainerEntry { replica: self.replica_id(index), desired_state })
        })
    }

    fn desired_state_of(&self, replica: &Replica) -> Option<ContainerDesiredState> {
        if self.is_releasing(replica) {
            return Some(ContainerDesiredState::Gone);
        }
        if self.must_wait(replica) {
            return None;
        }
        // A node that boots again would run a program that has ended once more.
        if self.desired_state == ContainerGoal::Stop || replica.has_ended() {
            return Some(ContainerDesiredState::Stopped);
        }
        let spec = ReplicaSpec { run: replica.run, ..self.spec.clone() };
        Some(ContainerDesiredState::Run(Box::new(spec)))
    }

    /// Returns true if a replica is not ordered to run before it is confirmed.
    pub(super) fn must_wait(&self, replica: &Replica) -> bool {
        self.desired_state == ContainerGoal::Run && replica.unconfirmed
    }

    /// Returns true if the node of a replica has followed its order.
    pub fn is_settled(&self, index: usize) -> bool {
        let Some(replica) = self.replicas.get(index) else { return true };
        if self.is_releasing(replica) {
            return false;
        }
        if self.must_wait(replica) {
            return true;
        }
        match &replica.last_report {
            None => self.desired_state == ContainerGoal::Stop,
            Some(status) if self.desired_state == ContainerGoal::Stop => status.state.has_ended(),
            Some(status) => status.run == replica.run,
        }
    }

    /// Returns true if a replica must be placed without an order of an operator.
    pub fn needs_placement(&self, index: usize) -> bool {
        self.desired_state == ContainerGoal::Run
            && self.replicas.get(index).is_some_and(|replica| {
                let is_held = replica.is_held || replica.unconfirmed;
                replica.placement.is_none() && !is_held && !replica.has_ended()
            })
    }

    /// Assigns a node to a replica.
    pub fn assign(&mut self, index: usize, placement: Placement) {
        if let Some(replica) = self.replicas.get_mut(index) {
            replica.placement = Some(placement);
            replica.last_report = None;
            replica.leaving = None;
            replica.obstacle = None;
        }
    }

    /// Applies a report of the node of a replica.
    pub fn apply_report(
        &mut self,
        report: &ReplicaReport,
        now: Timestamp,
    ) -> Option<ReplicaChange> {
        let goal = self.desired_state;
        let replica = self.replicas.get_mut(usize::from(report.replica.index))?;
        replica.confirm(report.run);
        let state = bounded(report.state.clone());
        let before = replica.last_report.as_ref();
        let is_same = before.is_some_and(|before| {
            (before.run, before.restarts, &before.state) == (report.run, report.restarts, &state)
        });
        if is_same {
            return None;
        }
        let before_state = before.filter(|before| before.run == report.run).map(|it| &it.state);
        let change = change_of(before_state, &state, self.spec.memory_mib);
        let is_kept = before_state == Some(&state);
        let since = before.filter(|_| is_kept).map_or(now, |before| before.since);
        let ReplicaReport { run, restarts, .. } = *report;
        replica.last_report = Some(ReplicaStatus { run, restarts, state, since });
        if goal == ContainerGoal::Run {
            replica.leave_unfit_node();
        }
        change
    }

    /// Applies a complete report of the node that does not contain the replica. An order that the
    /// node has lost is repeated.
    pub fn apply_absence(&mut self, index: usize) -> Option<ReplicaChange> {
        let replica = self.replicas.get_mut(index)?;
        let status = replica.last_report.take_if(|status| !status.state.has_ended())?;
        let ran = matches!(status.state, ReplicaState::Running { .. });
        ran.then(|| ReplicaChange::Lost("its node no longer reports it".to_owned()))
    }

    /// Applies a boot of the node, after which nothing of the replica runs there.
    pub fn apply_reboot(&mut self, index: usize, session: BootSessionId) -> Option<ReplicaChange> {
        let replica = self.replicas.get_mut(index)?;
        let placement = replica.placement.as_mut().filter(|it| it.session != Some(session))?;
        placement.session = Some(session);
        replica.last_report.take_if(|status| !status.state.has_ended())?;
        Some(ReplicaChange::Lost("its node booted again".to_owned()))
    }

    /// Frees a replica whose node lost it for certain, or has released it. Returns false if no node
    /// had it.
    pub fn unplace(&mut self, index: usize, why: &str) -> bool {
        let Some(replica) = self.replicas.get_mut(index) else { return false };
        if replica.placement.take().is_none() {
            return false;
        }
        // A program that ended because it left its node runs on the next one.
        let is_over = replica.leaving.take().is_none() && replica.has_ended();
        replica.last_report.take_if(|_| !is_over);
        replica.obstacle = Some(why.chars().take(MAX_REASON).collect());
        true
    }

    /// Withdraws a replica from a node that runs nothing any more, because it is drained.
    pub fn leave(&mut self, index: usize, why: &str) -> bool {
        if self.desired_state != ContainerGoal::Run {
            return false;
        }
        let Some(replica) = self.replicas.get_mut(index) else { return false };
        let is_idle = replica.has_ended() || replica.unconfirmed;
        if replica.placement.is_none() || replica.leaving.is_some() || is_idle {
            return false;
        }
        replica.leaving = Some(why.to_owned());
        true
    }

    /// Returns true if a replica runs or will run on its node without an order.
    pub fn may_work(&self, index: usize) -> bool {
        let Some(replica) = self.replicas.get(index) else { return false };
        let is_off = match self.desired_state {
            ContainerGoal::Run => replica.has_ended() || replica.unconfirmed,
            ContainerGoal::Stop => self.is_settled(index),
            ContainerGoal::Release => false,
        };
        replica.placement.is_some() && !is_off
    }
}

impl Replica {
    /// Records that the node has the replica. It may have executed starts that a backup does not
    /// know, and ignores orders with a lower number.
    fn confirm(&mut self, run: u32) {
        if std::mem::take(&mut self.unconfirmed) {
            self.obstacle = None;
            self.catch_up(run);
        }
    }

    /// Raises the number of the start to the last one that the node executed.
    fn catch_up(&mut self, run: u32) {
        let bound = self.run.saturating_add(MAX_UNKNOWN_STARTS);
        let is_bounded = failpoint::defends("replica-number");
        self.run = self.run.max(if is_bounded { run.min(bound) } else { run });
    }

    /// Withdraws a replica from a node that could not run its first start there. Another node may.
    fn leave_unfit_node(&mut self) {
        let (Some(node), Some(status)) = (self.node(), &self.last_report) else { return };
        let ReplicaState::Failed { kind, detail } = &status.state else { return };
        let is_fault_of_node = match kind {
            ContainerFault::RuntimeMissing
            | ContainerFault::CgroupMissing
            | ContainerFault::PortInUse
            | ContainerFault::Prepare => true,
            ContainerFault::ImageMissing
            | ContainerFault::ImageDiffers
            | ContainerFault::MountPath
            | ContainerFault::OutOfMemory
            | ContainerFault::ProgramMissing
            | ContainerFault::Unknown => false,
        };
        if !is_fault_of_node || status.run != self.run || status.restarts > 0 {
            return;
        }
        let why: String = format!("{}: {detail}", kind.as_str()).chars().take(MAX_REASON).collect();
        self.refused.insert(node, why.clone());
        if self.refused.len() < MAX_REFUSED {
            self.leaving = Some(why);
        }
    }
}

/// Shortens what a node reports. The progress has steps, because each one is a write.
fn bounded(state: ReplicaState) -> ReplicaState {
    match state {
        ReplicaState::Fetching { percent } => {
            ReplicaState::Fetching { percent: percent.min(100) / 10 * 10 }
        }
        ReplicaState::Failed { kind, detail } => {
            let detail = meshd_types::one_line(&detail).chars().take(MAX_FAULT_DETAIL).collect();
            ReplicaState::Failed { kind, detail }
        }
        state => state,
    }
}

/// Returns why a program failed; `memory_mib` is its limit.
pub(super) fn reason_of(state: &ReplicaState, memory_mib: u32) -> Option<String> {
    match state {
        ReplicaState::Waiting { out_of_memory: true, .. }
        | ReplicaState::Failed { kind: ContainerFault::OutOfMemory, .. } => {
            Some(format!("out of memory (limit {memory_mib} MiB)"))
        }
        ReplicaState::Failed { kind, detail } => Some(format!("{}: {detail}", kind.as_str())),
        _ => None,
    }
}

fn change_of(
    before: Option<&ReplicaState>,
    after: &ReplicaState,
    memory_mib: u32,
) -> Option<ReplicaChange> {
    let health = |state: Option<&ReplicaState>| match state {
        Some(ReplicaState::Running { healthy }) => Some(*healthy),
        _ => None,
    };
    match after {
        ReplicaState::Running { healthy } => match (health(before), healthy) {
            (None, None | Some(true)) => Some(ReplicaChange::Runs),
            (Some(Some(true)), Some(true)) | (Some(Some(false)), Some(false)) => None,
            (_, Some(false)) => Some(ReplicaChange::Unhealthy),
            (_, Some(true)) => Some(ReplicaChange::Healthy),
            (_, None) => None,
        },
        _ if before == Some(after) => None,
        ReplicaState::Waiting { code, .. } => {
            Some(ReplicaChange::Restarts { code: *code, why: reason_of(after, memory_mib) })
        }
        ReplicaState::Exited { code } => Some(ReplicaChange::Exited { code: *code }),
        ReplicaState::Failed { .. } => reason_of(after, memory_mib).map(ReplicaChange::Failed),
        ReplicaState::Fetching { .. } | ReplicaState::Starting => None,
    }
}
