//! A container: a program of an image, with replicas on nodes of their own. Pure.
//!
//! ```text
//! run ──▶ every replica is placed, and its node receives the desired state at each welcome and each change
//!           │ the node reports: fetching, starting, running, waiting, exited, failed
//!           │ the node drains, or could not run it: the node releases the replica, and another one gets it
//!           │ the node is fenced, or boots again: the replica is lost, and starts again
//! delete ──▶ every node confirms the release ──▶ the record is deleted
//! restore of a backup ──▶ unconfirmed: no node runs a replica by order until its node reports it, or
//!           an operator starts the container
//! ```
//! A replica leaves its node only after the confirmation, or when its machine is certainly off or
//! booted again: there are never two copies.
//!
//! | module | content |
//! | --- | --- |
//! | `phase` | phases of replicas for operators |
//! | `placement` | chooses a node for a replica, or names what is against each node |
//! | `transitions` | orders, reports of nodes, and losses |

mod phase;
mod placement;
mod transitions;
#[cfg(test)]
mod tests;

pub use phase::ReplicaPhase;
pub use placement::{ContainerHost, NoReplicaPlacement, ReplicaReject, place_replica};
pub use transitions::{ReplicaChange, UNCONFIRMED};

use super::Placement;
use meshd_proto::container::{MAX_REPLICAS, ReplicaId, ReplicaSpec, ReplicaState};
use meshd_types::{Architecture, ContainerName, NodeId, ParseError, Timestamp, VolumeFileName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The desired state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContainerGoal {
    Run,
    /// No process runs. The nodes keep the logs.
    Stop,
    Release,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub name: ContainerName,
    /// Volume of the image.
    pub image: VolumeFileName,
    /// Architecture of the image.
    pub arch: Architecture,
    /// What each replica runs. The number of the start is that of the replica.
    pub spec: ReplicaSpec,
    pub desired_state: ContainerGoal,
    /// Caller that ordered it.
    pub owner: String,
    pub created_at: Timestamp,
    /// Replicas by index.
    pub replicas: Vec<Replica>,
}

/// One replica of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Number of the last ordered start, from 1.
    pub run: u32,
    /// Placement; `None` if no node has anything of the replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Why its node must release it before another one gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<String>,
    /// Last report; `None` before the first one of this placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<ReplicaStatus>,
    /// Why it has no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// A removed node may still run it, so only an operator starts it elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_held: bool,
    /// The record is from a backup and unconfirmed: the replica may run elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// Nodes that could not run this start, with reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<NodeId, String>,
}

/// The last report on a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Number of the start that the node last executed.
    pub run: u32,
    /// Automatic restarts of this start.
    pub restarts: u32,
    pub state: ReplicaState,
    /// Time of the last change of state.
    pub since: Timestamp,
}

impl Container {
    /// Returns the ID of a replica.
    pub fn replica_id(&self, index: usize) -> ReplicaId {
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        ReplicaId { container: self.name.clone(), index }
    }

    /// Returns the indexes of the replicas on a node.
    pub fn replicas_on(&self, node: NodeId) -> impl Iterator<Item = usize> {
        let replicas = self.replicas.iter().enumerate();
        replicas.filter(move |(_, replica)| replica.node() == Some(node)).map(|(index, _)| index)
    }

    /// Returns why the program of a replica failed, as its node reports it.
    pub fn fault_of(&self, replica: &Replica) -> Option<String> {
        transitions::reason_of(&replica.last_report.as_ref()?.state, self.spec.memory_mib)
    }

    /// Returns true if a node has, or may have, anything of the container.
    pub fn is_placed(&self) -> bool {
        self.replicas.iter().any(|replica| replica.placement.is_some())
    }
}

impl Replica {
    /// Returns the replicas of a new container, which have no node yet.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn first_starts(count: u16) -> Result<Vec<Replica>, ParseError> {
        if (1..=MAX_REPLICAS).contains(&count) {
            return Ok(vec![Replica { run: 1, ..Replica::default() }; usize::from(count)]);
        }
        let message = format!("{count} replicas are out of range");
        Err(ParseError::new(message, format!("use 1 to {MAX_REPLICAS}")))
    }

    pub fn node(&self) -> Option<NodeId> {
        self.placement.as_ref().map(|placement| placement.node)
    }

    /// Returns true if the program ended under the last ordered start, and does not start again
    /// without an order.
    pub fn has_ended(&self) -> bool {
        let status = self.last_report.as_ref();
        status.is_some_and(|status| status.run == self.run && status.state.has_ended())
    }
}
