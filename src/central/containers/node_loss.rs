//! Frees the replicas of nodes that are fenced, removed or drained, or that boot again.
//!
//! There are never two copies of a replica: it leaves its node only after the node has released it,
//! or after the machine is certainly off or booted again.

use super::{
    Containers,
    lifecycle::{container_event, edit_containers, replica_event},
};
use crate::{environment::alarms::log_failure, links::SpecPart};
use meshd_model::{
    fleet::{Actor, Cause, Node, Phase},
    work::container::{Container, ContainerGoal, ReplicaChange},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use std::collections::BTreeSet;

/// Why a replica leaves a node that takes no work.
const DRAINED: &str = "its node is drained";

impl Containers {
    /// Withdraws the replicas of nodes that are drained, so that other nodes get them.
    pub(crate) async fn leave_drained_nodes(&self) {
        let is_drained = |model: &Model, node: NodeId| {
            let phase = model.node(node).map(|node| node.phase);
            matches!(phase, Some(Phase::Draining | Phase::Maintenance))
        };
        let must_leave = |model: &Model, container: &Container| -> Vec<usize> {
            let is_there = |index: &usize| {
                let node = container.replicas[*index].node();
                node.is_some_and(|node| is_drained(model, node))
            };
            let runs = container.desired_state == ContainerGoal::Run;
            (0..container.replicas.len()).filter(|index| runs && is_there(index)).collect()
        };
        let leaves = |model: &Model| {
            model.containers().any(|container| {
                let mut copy = container.clone();
                must_leave(model, container).into_iter().any(|index| copy.leave(index, DRAINED))
            })
        };
        if !self.env.store.read(leaves) {
            return;
        }
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let mut nodes = BTreeSet::new();
            let all: Vec<Container> = tx.before().containers().cloned().collect();
            for mut container in all {
                let leaving = must_leave(tx.before(), &container);
                let mut has_changed = false;
                for index in leaving {
                    if container.leave(index, DRAINED) {
                        has_changed = true;
                        let node = container.replicas[index].node();
                        nodes.extend(node);
                        let id = container.replica_id(index);
                        tx.event(replica_event(&id, node, Actor::Central, DRAINED, now));
                    }
                }
                if has_changed {
                    tx.put_container(container);
                }
            }
            Ok::<_, StoreError>(nodes)
        });
        match stored.await {
            Ok(nodes) => {
                nodes
                    .into_iter()
                    .for_each(|node| self.links.notify_node(node, SpecPart::Containers));
            }
            Err(error) => log_failure(Err(error), "cannot move replicas of drained nodes"),
        }
    }
}

/// Frees all replicas of a node that lost its credentials, and whose machine is off.
pub(crate) fn release_replicas(
    tx: &mut Tx<'_>,
    node: NodeId,
    cause: impl Into<Cause> + Clone,
    why: &str,
    now: Timestamp,
) {
    edit_containers(tx, |container| {
        let indexes: Vec<usize> = container.replicas_on(node).collect();
        let mut events = Vec::new();
        for index in indexes {
            container.unplace(index, why);
            let id = container.replica_id(index);
            events.push(replica_event(&id, Some(node), cause.clone(), why, now));
        }
        events
    });
}

/// Frees all replicas of a node that an operator removes. Its machine may still run them, so only
/// an operator starts them elsewhere.
pub(crate) fn remove_replicas(
    tx: &mut Tx<'_>,
    node: NodeId,
    cause: impl Into<Cause> + Clone,
    now: Timestamp,
) {
    let why = "its node was removed and may still run it; when that machine is off: meshd container start";
    edit_containers(tx, |container| {
        let indexes: Vec<usize> = container.replicas_on(node).collect();
        for index in &indexes {
            container.unplace(*index, why);
            container.replicas[*index].is_held = container.desired_state == ContainerGoal::Run;
        }
        if indexes.is_empty() {
            return Vec::new();
        }
        vec![container_event(container, Some(node), cause.clone(), why, now)]
    });
}

/// Replaces the ID of a node in all containers.
pub(crate) fn move_replicas(tx: &mut Tx<'_>, old: NodeId, new: NodeId) {
    edit_containers(tx, |container| {
        for replica in &mut container.replicas {
            let placement = replica.placement.as_mut().filter(|it| it.node == old);
            placement.into_iter().for_each(|placement| placement.node = new);
            if let Some(why) = replica.refused.remove(&old) {
                replica.refused.insert(new, why);
            }
        }
        Vec::new()
    });
}

/// Records that the replicas of a node ended with its boot. If the node was lost, others get them,
/// and the credentials of its former boot are revoked first.
pub(crate) fn record_replica_reboot(
    tx: &mut Tx<'_>,
    node: NodeId,
    session: BootSessionId,
    now: Timestamp,
) {
    let was_lost = tx.node(node).is_some_and(|node| node.phase == Phase::Offline);
    let is_another = |container: &Container, index: usize| {
        let placement = container.replicas[index].placement.as_ref();
        placement.is_some_and(|placement| placement.session != Some(session))
    };
    let mut has_moved = false;
    edit_containers(tx, |container| {
        let own = container.replicas_on(node);
        let indexes: Vec<usize> = own.filter(|index| is_another(container, *index)).collect();
        let mut events = Vec::new();
        for index in indexes {
            let id = container.replica_id(index);
            let why = if was_lost {
                has_moved = true;
                let why = "its node was lost, and booted again";
                container.unplace(index, why).then(|| why.to_owned())
            } else {
                match container.apply_reboot(index, session) {
                    Some(ReplicaChange::Lost(why)) => Some(why),
                    _ => None,
                }
            };
            if let Some(why) = why {
                events.push(replica_event(&id, Some(node), Actor::Node, &why, now));
            }
        }
        events
    });
    if has_moved {
        tx.edit_node(node, Node::revoke);
    }
}
