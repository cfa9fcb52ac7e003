//! Chooses nodes for replicas.

use super::{Containers, lifecycle::replica_event};
use crate::{
    environment::{alarms::log_failure, site_snapshot::SiteSnapshot},
    links::SpecPart,
    reported_work::UnknownWork,
    vms::candidate_nodes,
};
use meshd_model::{
    boot::effective_profile,
    fleet::Actor,
    work::{
        Placement,
        container::{Container, ContainerHost, NoReplicaPlacement, place_replica},
    },
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{ContainerName, NodeId, Timestamp};
use std::collections::BTreeMap;

/// Maximum length of a stored reason, in characters.
const MAX_REASON: usize = 300;

impl Containers {
    /// Chooses the node of a replica. At most once in a transaction for each replica of one
    /// container: other containers are read from the state before it.
    pub(super) fn place_in(
        &self,
        tx: &Tx<'_>,
        snapshot: &SiteSnapshot,
        container: &mut Container,
        index: usize,
        now: Timestamp,
    ) -> Result<NodeId, NoReplicaPlacement> {
        let model = tx.before();
        let unknown = self.reported.nodes_with_unknown_work();
        let hosts = hosts(model, snapshot, &unknown);
        let node = place_replica(container, index, hosts)?;
        let session = model.node(node).and_then(|node| node.boot);
        container.assign(index, Placement { node, since: now, session });
        Ok(node)
    }

    /// Places the replicas that lost their node. Those that do not fit are retried at the next
    /// scan.
    pub(crate) async fn place_waiting_replicas(&self) {
        let waiting: Vec<(ContainerName, usize)> = self.env.store.read(|model| {
            let waiting = |container: &Container| -> Vec<(ContainerName, usize)> {
                let replicas = 0..container.replicas.len();
                let waiting = replicas.filter(|index| container.needs_placement(*index));
                waiting.map(|index| (container.name.clone(), index)).collect()
            };
            model.containers().flat_map(waiting).collect()
        });
        for (name, index) in waiting {
            log_failure(self.place_waiting(&name, index).await, "cannot place a replica");
        }
    }

    async fn place_waiting(&self, name: &ContainerName, index: usize) -> Result<(), StoreError> {
        let snapshot = self.env.snapshot();
        let now = self.env.now();
        let placed = self.env.store.commit(|tx| {
            let waits = |container: &&Container| container.needs_placement(index);
            let Some(mut container) = tx.container(name).filter(waits).cloned() else {
                return Ok(None);
            };
            match self.place_in(tx, &snapshot, &mut container, index, now) {
                Ok(node) => {
                    let id = container.replica_id(index);
                    let detail = format!("is started on {node}");
                    tx.event(replica_event(&id, Some(node), Actor::Central, &detail, now));
                    tx.put_container(container);
                    Ok(Some(node))
                }
                Err(why) => {
                    let why = why.to_string().chars().take(MAX_REASON).collect();
                    let replica = &mut container.replicas[index];
                    // An unchanged reason causes no write at each scan.
                    if replica.obstacle.as_ref() != Some(&why) {
                        replica.obstacle = Some(why);
                        tx.put_container(container);
                    }
                    Ok(None)
                }
            }
        });
        if let Some(node) = placed.await? {
            self.links.notify_node(node, SpecPart::Containers);
        }
        Ok(())
    }
}

/// All approved nodes, as the placement of replicas sees them.
fn hosts<'a>(
    model: &'a Model,
    snapshot: &'a SiteSnapshot,
    unknown: &BTreeMap<NodeId, UnknownWork>,
) -> impl Iterator<Item = ContainerHost<'a>> {
    candidate_nodes(model, &snapshot.site).map(move |mut candidate| {
        let node = model.node(candidate.node);
        let facts = node.and_then(|node| node.facts.as_ref());
        let image = node.map(|node| &effective_profile(&snapshot.site, node).image);
        let image = image.and_then(|name| snapshot.catalog.image(name));
        if unknown.contains_key(&candidate.node) {
            candidate.unready = candidate.unready.or(Some("has_unknown_work"));
        }
        ContainerHost {
            node: candidate,
            arch: image.map(|image| image.manifest.arch),
            has_runtime: facts.is_some_and(|facts| facts.container_runtime.is_some()),
        }
    })
}
