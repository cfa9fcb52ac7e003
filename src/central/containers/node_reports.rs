//! Processes reports of nodes about replicas. Replicas that are on record, but not there, must be
//! removed. Those of unknown containers are shown and left running.

use super::{
    Containers,
    lifecycle::{existing, put_or_remove, replica_event},
};
use crate::links::SpecPart;
use meshd_model::{
    fleet::{Actor, Event, EventKind},
    work::container::{Container, ReplicaChange},
};
use meshd_proto::{
    Section,
    container::{ContainerUpdate, MAX_NODE_REPLICAS, ReplicaId, ReplicaReport},
};
use meshd_store::{Model, StoreError};
use meshd_types::{ContainerName, NodeId, Timestamp, failpoint};
use std::collections::BTreeSet;

impl Containers {
    /// Handles a report about replicas.
    pub(crate) async fn container_update(
        &self,
        node: NodeId,
        update: ContainerUpdate,
    ) -> Result<(), StoreError> {
        let handled = match update {
            ContainerUpdate::All { mut replicas } => {
                replicas.truncate(MAX_NODE_REPLICAS);
                self.sort_strangers(node, &replicas).await;
                let applied = self.apply_reports(node, replicas).await;
                if applied.is_ok() {
                    self.reported.record_section(node, Section::Containers);
                }
                applied
            }
            ContainerUpdate::Released { replica } => self.record_release(node, replica).await,
        };
        self.links.forget_unlinked(node);
        handled
    }

    async fn apply_reports(
        &self,
        node: NodeId,
        replicas: Vec<ReplicaReport>,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        // Most reports change nothing and cause no write.
        if !self.env.store.read(|model| has_changes(model, node, &replicas, now)) {
            return Ok(());
        }
        let stored = self.env.store.commit(|tx| {
            let mut is_reordered = false;
            let mut is_confirmed = false;
            for (name, index) in placed_on(tx.before(), node) {
                let Ok(before) = existing(tx, &name) else { continue };
                let mut container = before.clone();
                let change = apply(&mut container, index, &replicas, now);
                let id = container.replica_id(index);
                if let Some(detail) = change.map(describe) {
                    tx.event(replica_event(&id, Some(node), Actor::Node, &detail, now));
                }
                is_confirmed |= before.is_unconfirmed(index) && !container.is_unconfirmed(index);
                if container != before {
                    is_reordered |= !before.entries_for(node).eq(container.entries_for(node));
                    tx.put_container(container);
                }
            }
            Ok::<_, StoreError>((is_reordered, is_confirmed))
        });
        let (is_reordered, is_confirmed) = stored.await?;
        if is_reordered {
            self.links.notify_node(node, SpecPart::Containers);
        }
        if is_confirmed {
            self.release_strangers();
        }
        Ok(())
    }

    /// Sorts the replicas that are not on record at this node: those of a container on record must
    /// be removed, the others are shown. A report causes the first order only. After a restore, the
    /// replica of this node may be the only one.
    async fn sort_strangers(&self, node: NodeId, replicas: &[ReplicaReport]) {
        let ids = replicas.iter().map(|report| report.replica.clone());
        let ordered = self.reported.replica_removals.of(node);
        let (mut removals, orphans): (BTreeSet<ReplicaId>, BTreeSet<ReplicaId>) =
            self.env.store.read(|model| {
                let strangers = ids.filter(|id| node_of(model, id) != Some(node));
                strangers.partition(|id| must_leave(model, node, id))
            });
        // An operator ordered the removal of these.
        removals.extend(orphans.intersection(&ordered).cloned());
        if !self.reported.replica_removals.set(node, removals).is_empty() {
            self.links.notify_node(node, SpecPart::Containers);
        }
        let names = orphans.iter().map(ReplicaId::to_string).collect::<Vec<_>>().join(" ");
        let new = self.reported.orphan_replicas.set(node, orphans);
        if !names.is_empty() {
            // A confirmation or a start since the sorting did not find these.
            self.release_strangers();
        }
        // A node that invents replicas must not evict events of others.
        if !new.is_empty() && self.env.allows(&format!("strange containers of {node}")) {
            let detail = format!(
                "the node runs {names}, not on record there; `meshd container delete` ends it"
            );
            let event = Event::new(self.env.now(), Actor::Node, EventKind::Container, detail);
            self.env.record(event.of_node(node)).await;
        }
    }

    async fn record_release(&self, node: NodeId, replica: ReplicaId) -> Result<(), StoreError> {
        self.reported.orphan_replicas.remove(node, &replica);
        self.reported.replica_removals.remove(node, &replica);
        let now = self.env.now();
        let index = usize::from(replica.index);
        let is_own = |container: &Container| {
            let replica = container.replicas.get(index);
            replica.is_some_and(|replica| {
                let is_there = replica.node() == Some(node) || !failpoint::defends("released-node");
                is_there && container.is_releasing(replica)
            })
        };
        if !self.env.store.read(|model| model.container(&replica.container).is_some_and(is_own)) {
            return Ok(());
        }
        let stored = self.env.store.commit(|tx| {
            let Ok(mut container) = existing(tx, &replica.container) else { return Ok(()) };
            if !is_own(&container) {
                return Ok(());
            }
            let detail = "the node has released everything";
            tx.event(replica_event(&replica, Some(node), Actor::Node, detail, now));
            let why = container.replicas[index].leaving.clone().unwrap_or_default();
            container.unplace(index, &why);
            put_or_remove(tx, container);
            Ok::<_, StoreError>(())
        });
        stored.await?;
        self.place_waiting_replicas().await;
        Ok(())
    }

    /// Ends the copies of replicas that are on record elsewhere, or that their container does not
    /// have, as far as the record is confirmed.
    pub(super) fn release_strangers(&self) {
        let mut found = self.reported.orphan_replicas.matching(|_| true);
        self.env.store.read(|model| {
            for (node, replicas) in &mut found {
                replicas.retain(|id| must_leave(model, *node, id));
            }
        });
        for (node, replicas) in found.iter().filter(|(_, replicas)| !replicas.is_empty()) {
            self.reported.replica_removals.extend(*node, replicas);
            self.links.notify_node(*node, SpecPart::Containers);
        }
    }

    /// Ends replicas that are not on record at their nodes; true if a node has one.
    pub(super) fn release_orphans(&self, is_wanted: impl Fn(&ReplicaId) -> bool) -> bool {
        let found = self.reported.orphan_replicas.matching(is_wanted);
        for (node, replicas) in &found {
            self.reported.replica_removals.extend(*node, replicas);
            self.links.notify_node(*node, SpecPart::Containers);
        }
        !found.is_empty()
    }
}

/// Returns the node of a replica on record.
fn node_of(model: &Model, id: &ReplicaId) -> Option<NodeId> {
    model.container(&id.container)?.replicas.get(usize::from(id.index))?.node()
}

/// Returns true if a node must remove a replica that it reports: its container is on record and
/// confirmed, and has it elsewhere or not at all.
fn must_leave(model: &Model, node: NodeId, id: &ReplicaId) -> bool {
    let container = model.container(&id.container);
    container.is_some_and(|container| !container.is_unconfirmed(usize::from(id.index)))
        && node_of(model, id) != Some(node)
}

fn placed_on(model: &Model, node: NodeId) -> Vec<(ContainerName, usize)> {
    model.replicas_of(node).map(|(container, index)| (container.name.clone(), index)).collect()
}

fn has_changes(model: &Model, node: NodeId, replicas: &[ReplicaReport], now: Timestamp) -> bool {
    model.replicas_of(node).any(|(container, index)| {
        let mut after = container.clone();
        apply(&mut after, index, replicas, now);
        after != *container
    })
}

/// Applies the report of one replica, or its absence.
fn apply(
    container: &mut Container,
    index: usize,
    replicas: &[ReplicaReport],
    now: Timestamp,
) -> Option<ReplicaChange> {
    let id = container.replica_id(index);
    match replicas.iter().find(|report| report.replica == id) {
        Some(report) => container.apply_report(report, now),
        None => container.apply_absence(index),
    }
}

fn describe(change: ReplicaChange) -> String {
    match change {
        ReplicaChange::Runs => "runs".to_owned(),
        ReplicaChange::Healthy => "is healthy".to_owned(),
        ReplicaChange::Unhealthy => "is unhealthy".to_owned(),
        ReplicaChange::Restarts { code, why } => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            format!("ended with code {code} and restarts{why}")
        }
        ReplicaChange::Exited { code } => format!("ended with code {code}"),
        ReplicaChange::Failed(why) => format!("failed: {why}"),
        ReplicaChange::Lost(why) => why,
    }
}
