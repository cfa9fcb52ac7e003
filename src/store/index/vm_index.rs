//! VMs, containers and slots in memory, and the allocations of each node.

use super::{nic_index::NicIndex, unavailable_units::UnavailableUnits};
use crate::{Model, records::RecordIndex, tx::Tx};
use meshd_model::{
    fleet::Node,
    work::{Allocations, ApprovedSlot, SlotId, Vm, VmDesiredState, container::Container},
};
use meshd_types::{ContainerName, MacAddr, NodeId, SystemUuid, VmName};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Numbers of replicas, so that no page has to look at each one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Replicas that are to run.
    pub wanted: usize,
    /// Replicas of a node that run if it has a link.
    pub running: BTreeMap<NodeId, usize>,
}

impl ReplicaCounts {
    pub(super) fn add(&mut self, container: &Container) {
        for (replica, runs) in container.wanted_replicas() {
            self.wanted += 1;
            if let Some(node) = replica.node().filter(|_| runs) {
                *self.running.entry(node).or_default() += 1;
            }
        }
    }

    pub(super) fn subtract(&mut self, container: &Container) {
        for (replica, runs) in container.wanted_replicas() {
            self.wanted -= 1;
            let Some(node) = replica.node().filter(|_| runs) else { continue };
            let Some(count) = self.running.get_mut(&node) else { continue };
            *count -= 1;
            if *count == 0 {
                self.running.remove(&node);
            }
        }
    }
}

/// VMs, containers and slots, with derived indexes.
#[derive(Default)]
pub(crate) struct VmIndex {
    vms: BTreeMap<SystemUuid, Vm>,
    pub(super) containers: BTreeMap<ContainerName, Container>,
    pub(crate) slots: BTreeMap<SlotId, ApprovedSlot>,
    /// Derived: the addresses of slots.
    slot_macs: BTreeMap<MacAddr, SlotId>,
    slot_addresses: BTreeMap<Ipv4Addr, SlotId>,
    /// Derived: a name is unique.
    names: BTreeMap<VmName, SystemUuid>,
    /// Derived: VMs that further nodes must release.
    stray_nodes: BTreeSet<SystemUuid>,
    unplaced: BTreeSet<SystemUuid>,
    /// Derived: allocations of a node.
    pub(super) allocations_by_node: BTreeMap<NodeId, Allocations>,
    /// Derived: see [`Container::wanted_replicas`].
    pub(super) replica_counts: ReplicaCounts,
    pub(crate) nics: NicIndex,
    pub(crate) unavailable: UnavailableUnits,
}

impl RecordIndex<SlotId, ApprovedSlot> for VmIndex {
    fn put_record(&mut self, id: SlotId, slot: ApprovedSlot) -> Option<ApprovedSlot> {
        let before = self.remove_record(&id);
        if let Some(nic) = slot.nic {
            self.slot_macs.insert(nic.mac, id.clone());
            nic.address.map(|address| self.slot_addresses.insert(address, id.clone()));
        }
        self.slots.insert(id, slot);
        before
    }

    fn remove_record(&mut self, id: &SlotId) -> Option<ApprovedSlot> {
        self.unavailable.reset(id.node);
        let slot = self.slots.remove(id)?;
        // Another slot may own the address now: a renamed node moves its slots in one transaction.
        if let Some(nic) = slot.nic {
            remove_if_owned(&mut self.slot_macs, nic.mac, id);
            nic.address
                .into_iter()
                .for_each(|address| remove_if_owned(&mut self.slot_addresses, address, id));
        }
        Some(slot)
    }
}

impl RecordIndex<SystemUuid, Vm> for VmIndex {
    fn put_record(&mut self, uuid: SystemUuid, vm: Vm) -> Option<Vm> {
        let old = self.take_vm(uuid);
        if old.as_ref().is_none_or(|old| !old.has_same_nics(&vm)) {
            old.iter().for_each(|old| self.nics.remove(old));
            self.nics.add(&vm);
        }
        // A VM that is being deleted does not keep its name.
        let owner = self.names.get(vm.name()).and_then(|owner| self.vms.get(owner));
        if owner.is_none_or(|owner| owner.desired_state == VmDesiredState::Release) {
            self.names.insert(vm.name().clone(), uuid);
        }
        if !vm.stray_nodes.is_empty() {
            self.stray_nodes.insert(uuid);
        }
        if let Some(node) = vm.node() {
            self.allocations_by_node.entry(node).or_default().add(&vm);
            self.unavailable.reset(node);
        } else {
            self.unplaced.insert(uuid);
        }
        for (node, disks) in &vm.pending_wipes {
            self.allocations_by_node.entry(*node).or_default().owe(uuid, disks);
        }
        self.vms.insert(uuid, vm);
        old
    }

    fn remove_record(&mut self, uuid: &SystemUuid) -> Option<Vm> {
        let old = self.take_vm(*uuid)?;
        self.nics.remove(&old);
        Some(old)
    }
}

impl VmIndex {
    /// Removes a VM from all indexes but that of NICs.
    fn take_vm(&mut self, uuid: SystemUuid) -> Option<Vm> {
        let old = self.vms.remove(&uuid)?;
        if self.names.get(old.name()) == Some(&uuid) {
            self.names.remove(old.name());
        }
        self.stray_nodes.remove(&uuid);
        self.unplaced.remove(&uuid);
        for node in old.node().into_iter().chain(old.pending_wipes.keys().copied()) {
            self.unavailable.reset(node);
            if let Some(allocations) = self.allocations_by_node.get_mut(&node) {
                allocations.remove(uuid);
                if allocations.is_empty() {
                    self.allocations_by_node.remove(&node);
                }
            }
        }
        Some(old)
    }
}

/// Removes a key if this slot owns it.
fn remove_if_owned<K: Ord>(index: &mut BTreeMap<K, SlotId>, key: K, id: &SlotId) {
    if index.get(&key) == Some(id) {
        index.remove(&key);
    }
}

impl Model {
    /// All nodes by ID; the iterator can be cloned.
    pub fn all_nodes(&self) -> impl Iterator<Item = &Node> + Clone {
        self.nodes.values()
    }

    /// All VMs, by UUID.
    pub fn vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.vms.values()
    }

    pub fn slot_of_mac(&self, mac: MacAddr) -> Option<&SlotId> {
        self.work.slot_macs.get(&mac)
    }

    pub fn slot_at(&self, address: Ipv4Addr) -> Option<&SlotId> {
        self.work.slot_addresses.get(&address)
    }

    /// All recorded slots.
    pub fn slots(&self) -> &BTreeMap<SlotId, ApprovedSlot> {
        &self.work.slots
    }

    pub fn vm_count(&self) -> usize {
        self.work.vms.len()
    }

    pub fn vm(&self, uuid: SystemUuid) -> Option<&Vm> {
        self.work.vms.get(&uuid)
    }

    pub fn vm_named(&self, name: &VmName) -> Option<&Vm> {
        self.vm(*self.work.names.get(name)?)
    }

    /// The allocations of a node; `None` without any.
    pub fn allocations(&self, node: NodeId) -> Option<&Allocations> {
        self.work.allocations_by_node.get(&node)
    }

    /// VMs that further nodes must release.
    pub fn stray_vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.stray_nodes.iter().filter_map(|uuid| self.vm(*uuid))
    }

    /// VMs without a node.
    pub fn unplaced_vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.unplaced.iter().filter_map(|uuid| self.vm(*uuid))
    }

    /// VMs that are placed on a node.
    pub fn vms_of(&self, node: NodeId) -> impl Iterator<Item = &Vm> {
        self.allocations(node)
            .into_iter()
            .flat_map(Allocations::vms)
            .filter_map(|uuid| self.vm(uuid))
    }
}

impl Tx<'_> {
    /// A VM, as staged or as it was.
    pub fn vm(&self, uuid: SystemUuid) -> Option<&Vm> {
        self.staged.vms.get(&uuid, || self.before().vm(uuid))
    }

    /// All VMs, as staged or as they were.
    pub fn all_vms(&self) -> impl Iterator<Item = &Vm> {
        let before = self.before().vms().filter(|vm| !self.staged.vms.contains(&vm.uuid()));
        self.staged.vms.records().chain(before)
    }

    pub fn put_vm(&mut self, vm: Vm) {
        self.staged.vms.put(vm.uuid(), vm);
    }

    pub fn put_slot(&mut self, slot: ApprovedSlot) {
        self.staged.slots.put(slot.id.clone(), slot);
    }

    /// Removes a slot, which becomes a candidate again.
    pub fn remove_slot(&mut self, id: SlotId) {
        self.staged.slots.remove(id);
    }
}
