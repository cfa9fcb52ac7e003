//! Containers in memory. Their replicas share the allocations of a node with its VMs.

use super::vm_index::{ReplicaCounts, VmIndex};
use crate::{Model, records::RecordIndex, tx::Tx};
use meshd_model::work::{Allocations, container::Container};
use meshd_types::{ContainerName, NodeId};

impl RecordIndex<ContainerName, Container> for VmIndex {
    fn put_record(&mut self, name: ContainerName, container: Container) -> Option<Container> {
        let before = self.remove_record(&name);
        for (index, replica) in container.replicas.iter().enumerate() {
            if let Some(node) = replica.node() {
                let allocations = self.allocations_by_node.entry(node).or_default();
                allocations.add_replica(container.replica_id(index), &container.spec);
            }
        }
        self.replica_counts.add(&container);
        self.containers.insert(name, container);
        before
    }

    fn remove_record(&mut self, name: &ContainerName) -> Option<Container> {
        let container = self.containers.remove(name)?;
        self.replica_counts.subtract(&container);
        for (index, replica) in container.replicas.iter().enumerate() {
            let Some(node) = replica.node() else { continue };
            let Some(allocations) = self.allocations_by_node.get_mut(&node) else { continue };
            allocations.remove_replica(&container.replica_id(index));
            if allocations.is_empty() {
                self.allocations_by_node.remove(&node);
            }
        }
        Some(container)
    }
}

impl Model {
    /// All containers, by name.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.work.containers.values()
    }

    pub fn container(&self, name: &ContainerName) -> Option<&Container> {
        self.work.containers.get(name)
    }

    pub fn container_count(&self) -> usize {
        self.work.containers.len()
    }

    pub fn replica_counts(&self) -> &ReplicaCounts {
        &self.work.replica_counts
    }

    /// Replicas that are placed on a node, each as its container and its index.
    pub fn replicas_of(&self, node: NodeId) -> impl Iterator<Item = (&Container, usize)> {
        let replicas = self.allocations(node).into_iter().flat_map(Allocations::replicas);
        replicas.filter_map(|id| Some((self.container(&id.container)?, usize::from(id.index))))
    }
}

impl Tx<'_> {
    /// A container, as staged or as it was.
    pub fn container(&self, name: &ContainerName) -> Option<&Container> {
        self.staged.containers.get(name, || self.before().container(name))
    }

    /// All containers, as staged or as they were.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        let is_staged = |container: &Container| self.staged.containers.contains(&container.name);
        let before = self.before().containers().filter(move |container| !is_staged(container));
        self.staged.containers.records().chain(before)
    }

    pub fn put_container(&mut self, container: Container) {
        self.staged.containers.put(container.name.clone(), container);
    }

    pub fn remove_container(&mut self, name: ContainerName) {
        self.staged.containers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::work::{
        Placement,
        container::{ContainerGoal, ReplicaStatus},
    };
    use meshd_proto::container::ReplicaState;
    use meshd_types::{Basis, MacAddr, Timestamp};
    use serde_json::json;

    fn node(number: u8) -> NodeId {
        Basis::Mac(MacAddr([2, 0, 0, 0, 0, number])).node_id()
    }

    /// A container whose replicas have these states, each on a node of its own.
    fn container(states: &[Option<ReplicaState>]) -> Container {
        let now = Timestamp::from_millis(0);
        let replica = |(number, state): (u8, &Option<ReplicaState>)| {
            let placement = Placement { node: node(number), since: now, session: None };
            let status = |state| ReplicaStatus { run: 1, restarts: 0, state, since: now };
            json!({ "run": 1, "placement": placement, "last_report": state.clone().map(status) })
        };
        let digest = "7".repeat(64);
        let container = json!({
            "name": "web", "image": "nginx", "arch": "x86_64", "desired_state": "run",
            "owner": "uid:0", "created_at": now,
            "spec": {
                "run": 1, "image": digest, "image_size": 1, "argv": ["x"], "working_dir": "/",
                "uid": 0, "gid": 0, "cpu_millis": 1, "memory_mib": 1, "scratch_mib": 1,
                "restart": { "when": "always" }, "stop_seconds": 1,
            },
            "replicas": (1..).zip(states).map(replica).collect::<Vec<_>>(),
        });
        serde_json::from_value(container).expect("a container")
    }

    #[test]
    fn counts_of_replicas_follow_each_change_of_a_container() {
        let runs = Some(ReplicaState::Running { healthy: None });
        let is_ill = Some(ReplicaState::Running { healthy: Some(false) });
        let has_exited = Some(ReplicaState::Exited { code: 0 });
        let web = container(&[runs.clone(), is_ill, has_exited, None]);
        let stopped = Container { desired_state: ContainerGoal::Stop, ..web.clone() };
        let mut index = VmIndex::default();
        let counts = |wanted, nodes: &[u8]| ReplicaCounts {
            wanted,
            running: nodes.iter().map(|number| (node(*number), 1)).collect(),
        };
        for (container, expected) in [
            (web, counts(3, &[1])),
            (stopped, counts(0, &[])),
            (container(&[runs.clone(), runs]), counts(2, &[1, 2])),
        ] {
            index.put_record(container.name.clone(), container);
            assert_eq!(index.replica_counts, expected);
        }
        RecordIndex::<ContainerName, Container>::remove_record(
            &mut index,
            &"web".parse().expect("a name"),
        );
        assert_eq!(index.replica_counts, ReplicaCounts::default());
    }
}
