//! Runs, starts, stops and deletes containers.
//!
//! The transaction that records a container also places its replicas, all or none. The order for
//! each node follows from the record ([`Container::entries_for`]): it is sent at each change and at
//! each welcome, and again while a node has not followed it.

use super::{
    Containers, MAX_SITE_CONTAINERS,
    error::{ContainerError, end_of_copy},
};
use crate::{links::SpecPart, vms::may_run};
use meshd_api::RunContainer;
use meshd_builder::{ContainerImage, VolumeError, VolumeInfo, VolumeKind};
use meshd_model::{
    fleet::{AuditContext, Cause, Event, EventKind},
    work::container::{Container, ContainerGoal, Replica},
};
use meshd_proto::{
    Section,
    container::{
        ContainerDesiredState, ContainerEntry, MAX_MOUNTS, MAX_NODE_REPLICAS, ReplicaId,
        ReplicaMount, ReplicaSpec,
    },
};
use meshd_store::{Model, ReplicaCounts, Tx};
use meshd_types::{ContainerName, Digest, NodeId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Limits of a container that names none.
const CPU_MILLIS: u32 = 1000;
const MEMORY_MIB: u32 = 256;
/// Maximum of written files; a quarter of the memory if that is less.
const SCRATCH_MIB: u32 = 64;
const STOP_SECONDS: u16 = 10;

impl Containers {
    /// Collects a view of each container, by name.
    pub fn collect<R>(&self, view: impl FnMut(&Container) -> R) -> Vec<R> {
        self.env.store.read(|model| model.containers().map(view).collect())
    }

    /// Returns the numbers of replicas that are to run, and of those that do on each node.
    pub fn replica_counts(&self) -> ReplicaCounts {
        self.env.store.read(|model| model.replica_counts().clone())
    }

    /// Returns a copy of the record of a container.
    pub fn container(&self, name: &str) -> Result<Container, ContainerError> {
        let not_found = || ContainerError::None(name.chars().take(80).collect());
        let parsed: ContainerName = name.parse().map_err(|_| not_found())?;
        self.env.store.read(|model| model.container(&parsed).cloned()).ok_or_else(not_found)
    }

    /// Records a container and places all its replicas, or does neither.
    pub async fn run(
        &self,
        order: RunContainer,
        audit: &AuditContext,
    ) -> Result<Container, ContainerError> {
        if is_like_replica(&order.name) {
            return Err(ContainerError::ReplicaName(order.name));
        }
        let image = self.vms.find_volume(&order.image).await?;
        let mounts = self.find_mounts(&order).await?;
        let mut container = self.new_container(order, &image, mounts, audit)?;
        let snapshot = self.env.snapshot();
        let now = container.created_at;
        let files: BTreeSet<Digest> = container.spec.files().map(|(file, _)| file).collect();
        // No volume may be removed between its check and the record that names it.
        let _stay = self.vms.keep_volumes().await;
        self.vms.declare_volumes_with(files.clone()).await;
        let committed = self.env.store.commit(|tx| {
            let name = &container.name;
            match tx.container(name) {
                Some(old) if old.desired_state == ContainerGoal::Release => {
                    return Err(ContainerError::Releasing(name.clone()));
                }
                Some(_) => return Err(ContainerError::NameTaken(name.clone())),
                None if tx.before().container_count() >= MAX_SITE_CONTAINERS => {
                    return Err(ContainerError::TooMany);
                }
                None => {}
            }
            if let Some(file) = files.iter().find(|file| !self.vms.has_volume(file)) {
                let gone = VolumeError::None(file.to_string());
                return Err(ContainerError::Volume(gone.into()));
            }
            for index in 0..container.replicas.len() {
                self.place_in(tx, &snapshot, &mut container, index, now)
                    .map_err(ContainerError::NoPlacement)?;
            }
            let nodes: Vec<String> = container
                .replicas
                .iter()
                .filter_map(|replica| Some(replica.node()?.to_string()))
                .collect();
            let detail = format!("image {} on {}", container.image, nodes.join(" "));
            tx.event(container_event(&container, None, audit, &detail, now));
            tx.put_container(container.clone());
            Ok(container)
        });
        let container = committed.await?;
        self.notify(&container);
        Ok(container)
    }

    /// Finds the volumes that an order mounts.
    async fn find_mounts(&self, order: &RunContainer) -> Result<Vec<ReplicaMount>, ContainerError> {
        let mut mounts = Vec::new();
        // One more than permitted: the check of the specification names the limit.
        for mount in order.mounts.iter().take(MAX_MOUNTS + 1) {
            let VolumeInfo { name: volume, digest, kind, size, .. } =
                self.vms.find_volume(&mount.volume).await?;
            if kind != VolumeKind::Squashfs {
                return Err(ContainerError::NoFiles { name: order.name.clone(), volume });
            }
            mounts.push(ReplicaMount { volume: digest, size, path: mount.path.clone() });
        }
        Ok(mounts)
    }

    /// Completes an order with the configuration of its image.
    fn new_container(
        &self,
        order: RunContainer,
        volume: &VolumeInfo,
        mounts: Vec<ReplicaMount>,
        audit: &AuditContext,
    ) -> Result<Container, ContainerError> {
        let name = order.name.clone();
        let Some(image) = &volume.container else {
            return Err(ContainerError::NoImage { name, volume: volume.name.clone() });
        };
        let replicas = Replica::first_starts(order.replicas)
            .map_err(|source| ContainerError::Replicas { name: name.clone(), source })?;
        let spec = ReplicaSpec { mounts, ..complete(order, volume, image) };
        if let Some(fault) = spec.faults().into_iter().next() {
            return Err(ContainerError::Unsound { name, fault });
        }
        Ok(Container {
            name,
            image: volume.name.clone(),
            arch: image.arch,
            spec,
            desired_state: ContainerGoal::Run,
            owner: audit.principal.to_string(),
            created_at: self.env.now(),
            replicas,
        })
    }

    /// Starts all replicas of a container that do not run. Those of a backup that another node
    /// reports go on waiting, each with the reason: there are never two copies.
    pub async fn start(
        &self,
        name: &str,
        audit: &AuditContext,
    ) -> Result<Container, ContainerError> {
        let start = |container: &mut Container| {
            let elsewhere = self.nodes_with_other_copies(container);
            if elsewhere.len() == container.replicas.len()
                && let Some((index, node)) = elsewhere.first_key_value()
            {
                let (name, replica) = (container.name.clone(), container.replica_id(*index));
                return Err(ContainerError::Elsewhere { name, replica, node: *node });
            }
            let why = |(index, node): (&usize, &NodeId)| {
                let replica = container.replica_id(*index);
                (
                    *index,
                    format!("not started: node {node} ran it; {}", end_of_copy(&replica, *node)),
                )
            };
            let waiting = elsewhere.iter().map(why).collect();
            container.start_except(&waiting);
            Ok(())
        };
        let container = self.order(name, "start ordered", audit, start).await?;
        self.release_strangers();
        self.place_waiting_replicas().await;
        Ok(container)
    }

    /// Ends all processes of a container. Its nodes keep the logs.
    pub async fn stop(
        &self,
        name: &str,
        audit: &AuditContext,
    ) -> Result<Container, ContainerError> {
        let stop = |container: &mut Container| {
            container.stop();
            Ok(())
        };
        self.order(name, "stop ordered", audit, stop).await
    }

    /// Returns the replicas from a backup that another node reports, each with a remedy.
    pub fn copies_elsewhere(&self, container: &Container) -> BTreeMap<usize, String> {
        let remedy = |(index, node): (usize, NodeId)| {
            let remedy = end_of_copy(&container.replica_id(index), node);
            (index, format!("node {node} runs a copy; {remedy}"))
        };
        self.nodes_with_other_copies(container).into_iter().map(remedy).collect()
    }

    /// Returns the replicas from a backup that another node reports, also while it must remove
    /// them, with that node.
    fn nodes_with_other_copies(&self, container: &Container) -> BTreeMap<usize, NodeId> {
        let unconfirmed = container.replicas.iter().enumerate().filter(|(_, it)| it.unconfirmed);
        let elsewhere = unconfirmed.filter_map(|(index, replica)| {
            let replica_id = container.replica_id(index);
            let orphans = self.reported.orphan_replicas.find(&replica_id);
            let removals = self.reported.replica_removals.find(&replica_id);
            let mut nodes = orphans.into_iter().chain(removals);
            Some((index, nodes.find(|node| replica.node() != Some(*node))?))
        });
        elsewhere.collect()
    }

    async fn order(
        &self,
        name: &str,
        detail: &str,
        audit: &AuditContext,
        change: impl Fn(&mut Container) -> Result<(), ContainerError> + Send,
    ) -> Result<Container, ContainerError> {
        let now = self.env.now();
        let name = self.container(name)?.name;
        let stored = self.env.store.commit(|tx| {
            let mut container = existing(tx, &name)?;
            if container.desired_state == ContainerGoal::Release {
                return Err(ContainerError::Releasing(name));
            }
            let before = container.clone();
            change(&mut container)?;
            if container != before {
                tx.event(container_event(&container, None, audit, detail, now));
                tx.put_container(container.clone());
            }
            Ok(container)
        });
        let container = stored.await?;
        self.notify(&container);
        Ok(container)
    }

    /// Deletes a container: its nodes release everything, then the record is removed. A container or
    /// a replica may also be on nodes without being on record there: these release it. The answer is
    /// `None` if there is no record.
    pub async fn delete(
        &self,
        name: &str,
        audit: &AuditContext,
    ) -> Result<Option<Container>, ContainerError> {
        let name = match self.container(name) {
            Ok(container) => container.name,
            Err(error)
                if self.release_orphans(|id| {
                    id.container.as_str() == name || id.to_string() == name
                }) =>
            {
                tracing::info!(%error, "nodes release its replicas");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let mut container = existing(tx, &name)?;
            if container.desired_state != ContainerGoal::Release {
                container.release();
                tx.event(container_event(&container, None, audit, "release ordered", now));
            }
            put_or_remove(tx, container.clone());
            Ok::<_, ContainerError>(container)
        });
        let container = stored.await?;
        self.notify(&container);
        self.release_orphans(|id| id.container == container.name);
        Ok(Some(container))
    }

    /// Sends the desired state to the nodes of a container; a node without link receives it at its
    /// next welcome.
    pub(super) fn notify(&self, container: &Container) {
        for node in container.replicas.iter().filter_map(Replica::node) {
            self.links.notify_node(node, SpecPart::Containers);
        }
    }

    /// Returns the desired state of all replicas of a node, as it is now. Orders to run are due
    /// only while the checks of the node's present boot pass.
    pub(crate) fn entries(&self, model: &Model, node: NodeId) -> Vec<ContainerEntry> {
        let may_run = may_run(model, node);
        let is_due = |entry: &ContainerEntry| {
            may_run || !matches!(entry.desired_state, ContainerDesiredState::Run(_))
        };
        let containers: BTreeSet<&ContainerName> =
            model.replicas_of(node).map(|(container, _)| &container.name).collect();
        let containers = containers.into_iter().filter_map(|name| model.container(name));
        let own = containers.flat_map(|container| container.entries_for(node)).filter(is_due);
        let gone = |replica: ReplicaId| ContainerEntry {
            replica,
            desired_state: ContainerDesiredState::Gone,
        };
        let removals = self.reported.replica_removals.of(node).into_iter().map(gone);
        own.chain(removals).take(2 * MAX_NODE_REPLICAS).collect()
    }

    /// Repeats the orders that a node has taken and not followed yet.
    pub(crate) fn repeat_orders(&self, node: NodeId) {
        if !self.links.has_observed_all(node, Section::Containers) {
            return;
        }
        let is_unsettled = self.env.store.read(|model| {
            model.replicas_of(node).any(|(container, index)| !container.is_settled(index))
        });
        if is_unsettled || !self.reported.replica_removals.of(node).is_empty() {
            self.links.notify_node(node, SpecPart::Containers);
        }
    }
}

/// Returns true for a name such as `web.0`, which is also the ID of a replica of `web`.
fn is_like_replica(name: &ContainerName) -> bool {
    let index = name.as_str().rsplit_once('.').map(|(_, index)| index);
    index
        .is_some_and(|index| !index.is_empty() && index.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Completes what an order leaves out with the configuration of the image.
fn complete(order: RunContainer, volume: &VolumeInfo, image: &ContainerImage) -> ReplicaSpec {
    let argv = if order.argv.is_empty() { image.argv() } else { order.argv };
    let mut env = image.env.clone();
    env.extend(order.env);
    let memory_mib = order.memory_mib.unwrap_or(MEMORY_MIB);
    ReplicaSpec {
        run: 0,
        image: volume.digest,
        image_size: volume.size,
        argv,
        env,
        working_dir: order.working_dir.unwrap_or_else(|| image.working_dir.clone()),
        uid: order.uid.unwrap_or(image.uid),
        gid: order.gid.or(order.uid).unwrap_or(image.gid),
        cpu_millis: order.cpu_millis.unwrap_or(CPU_MILLIS),
        memory_mib,
        scratch_mib: order.scratch_mib.unwrap_or(SCRATCH_MIB.min((memory_mib / 4).max(1))),
        ports: order.ports,
        mounts: Vec::new(),
        restart: order.restart,
        health: order.health,
        stop_seconds: order.stop_seconds.unwrap_or(STOP_SECONDS),
    }
}

pub(super) fn existing(tx: &Tx<'_>, name: &ContainerName) -> Result<Container, ContainerError> {
    tx.container(name).cloned().ok_or_else(|| ContainerError::None(name.to_string()))
}

/// Stores a container, or removes the record of a deleted one that no node has any more.
pub(super) fn put_or_remove(tx: &mut Tx<'_>, container: Container) {
    if container.desired_state == ContainerGoal::Release && !container.is_placed() {
        tx.remove_container(container.name);
    } else {
        tx.put_container(container);
    }
}

/// Changes containers in a transaction.
pub(super) fn edit_containers(tx: &mut Tx<'_>, mut edit: impl FnMut(&mut Container) -> Vec<Event>) {
    let all: Vec<Container> = tx.all_containers().cloned().collect();
    for before in all {
        let mut container = before.clone();
        let events = edit(&mut container);
        events.into_iter().for_each(|event| tx.event(event));
        if container != before {
            put_or_remove(tx, container);
        }
    }
}

/// Describes a change without arguments, which would make events long, and without environment,
/// which may contain secrets.
pub(super) fn container_event(
    container: &Container,
    node: Option<NodeId>,
    cause: impl Into<Cause>,
    detail: &str,
    now: Timestamp,
) -> Event {
    let detail = format!("container {}: {detail}", container.name);
    Event::new(now, cause, EventKind::Container, detail).of_node(node)
}

/// As [`container_event`], for one replica.
pub(super) fn replica_event(
    id: &ReplicaId,
    node: Option<NodeId>,
    cause: impl Into<Cause>,
    detail: &str,
    now: Timestamp,
) -> Event {
    Event::new(now, cause, EventKind::Container, format!("container {id}: {detail}")).of_node(node)
}

impl From<VolumeError> for ContainerError {
    fn from(error: VolumeError) -> Self {
        ContainerError::Volume(error.into())
    }
}
