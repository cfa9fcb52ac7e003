//! Containers in memory. Their replicas share the allocations of a node with its VMs.

use super::vm_index::VmIndex;
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
        self.containers.insert(name, container);
        before
    }

    fn remove_record(&mut self, name: &ContainerName) -> Option<Container> {
        let container = self.containers.remove(name)?;
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
