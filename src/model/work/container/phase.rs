//! Phases of replicas for operators.

use super::{Container, ContainerGoal, Replica};
use meshd_proto::container::{ContainerRestart, ReplicaState};
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

/// The phase of a replica: the reported state, and phases that only the central node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ReplicaPhase {
    /// No node has the replica.
    Unplaced,
    /// Its node has not reported it yet.
    Ordered,
    /// Its node fetches the image.
    Fetching,
    Starting,
    /// The program runs; its health is not known.
    Running,
    Healthy,
    Unhealthy,
    /// The program restarts after a delay.
    Waiting,
    Exited,
    Failed,
    /// The program is off by order.
    Stopped,
    /// The node does not answer; the program may run.
    Unreachable,
    /// A backup was restored, and the node has not reported it since.
    Unconfirmed,
    /// Its node releases it.
    Releasing,
}

impl ReplicaPhase {
    pub const ALL: [ReplicaPhase; ReplicaPhase::VARIANTS.len()] =
        *ReplicaPhase::VARIANTS.first_chunk().expect("the same length");
}

as_str!(ReplicaPhase);

impl Container {
    /// Returns the phase of a replica. `is_linked`: its node has a link.
    pub fn phase_of(&self, replica: &Replica, is_linked: bool) -> ReplicaPhase {
        let stops = self.desired_state == ContainerGoal::Stop;
        if self.must_wait(replica) {
            return ReplicaPhase::Unconfirmed;
        }
        let Some(status) = &replica.last_report else {
            return match &replica.placement {
                _ if stops => ReplicaPhase::Stopped,
                None => ReplicaPhase::Unplaced,
                Some(_) if self.is_releasing(replica) => ReplicaPhase::Releasing,
                Some(_) => ReplicaPhase::Ordered,
            };
        };
        match status.state {
            _ if self.is_releasing(replica) => ReplicaPhase::Releasing,
            ref state if !is_linked && !state.has_ended() => ReplicaPhase::Unreachable,
            ref state if stops && state.has_ended() => ReplicaPhase::Stopped,
            _ if status.run != replica.run => ReplicaPhase::Ordered,
            ReplicaState::Fetching { .. } => ReplicaPhase::Fetching,
            ReplicaState::Starting => ReplicaPhase::Starting,
            ReplicaState::Running { healthy: None } => ReplicaPhase::Running,
            ReplicaState::Running { healthy: Some(true) } => ReplicaPhase::Healthy,
            ReplicaState::Running { healthy: Some(false) } => ReplicaPhase::Unhealthy,
            ReplicaState::Waiting { .. } => ReplicaPhase::Waiting,
            ReplicaState::Exited { .. } => ReplicaPhase::Exited,
            ReplicaState::Failed { .. } => ReplicaPhase::Failed,
        }
    }

    /// Returns the replicas that are to run; true for one that does if its node has a link. One
    /// that has exited as its restart policy expects is not to run.
    pub fn wanted_replicas(&self) -> impl Iterator<Item = (&Replica, bool)> {
        let is_on = self.desired_state == ContainerGoal::Run;
        self.replicas.iter().filter(move |_| is_on).filter_map(|replica| {
            let phase = self.phase_of(replica, true);
            let state = replica.last_report.as_ref().map(|report| &report.state);
            let is_expected = self.spec.restart == ContainerRestart::Never
                || matches!(state, Some(ReplicaState::Exited { code: 0 }));
            let has_finished = phase == ReplicaPhase::Exited && is_expected;
            let runs = matches!(phase, ReplicaPhase::Running | ReplicaPhase::Healthy);
            (!has_finished).then_some((replica, runs))
        })
    }

    /// Returns true if the node of a replica must release it.
    pub fn is_releasing(&self, replica: &Replica) -> bool {
        let is_ordered = self.desired_state == ContainerGoal::Release || replica.leaving.is_some();
        replica.placement.is_some() && is_ordered
    }
}
