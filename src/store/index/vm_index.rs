//! VMs and slots in memory, and the allocations of each node.

use super::{nic_index::Cards, unavailable_units::UnavailableUnits};
use crate::{
    Model,
    tx::{Change, Tx},
};
use meshd_model::{
    fleet::Node,
    work::{Allocations, ApprovedSlot, SlotId, Vm, VmDesiredState},
};
use meshd_types::{MacAddr, NodeId, SystemUuid, VmName};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Virtual machines, and the indexes that are derived from them.
#[derive(Default)]
pub(crate) struct VmIndex {
    vms: BTreeMap<SystemUuid, Vm>,
    pub(crate) slots: BTreeMap<SlotId, ApprovedSlot>,
    /// Derived: the addresses of slots.
    slot_macs: BTreeMap<MacAddr, SlotId>,
    slot_addresses: BTreeMap<Ipv4Addr, SlotId>,
    /// Derived: a name is unique.
    names: BTreeMap<VmName, SystemUuid>,
    /// Derived: those that other nodes shall release, too.
    stray_nodes: BTreeSet<SystemUuid>,
    /// Derived: those without a node.
    unplaced: BTreeSet<SystemUuid>,
    /// Derived: what the machines of a node hold.
    held: BTreeMap<NodeId, Allocations>,
    /// Derived: network cards.
    pub(crate) cards: Cards,
    /// Derived: how many units of a node cannot be given.
    pub(crate) closed: UnavailableUnits,
}

impl VmIndex {
    pub(crate) fn apply(
        &mut self,
        vms: BTreeMap<SystemUuid, Change<Vm>>,
        slots: BTreeMap<SlotId, Change<ApprovedSlot>>,
    ) {
        for (uuid, change) in vms {
            match change {
                Change::Put(vm) => self.put_vm(vm),
                Change::Remove => self.remove_vm(uuid),
            }
        }
        for (id, change) in slots {
            self.closed.forget(id.node);
            match change {
                Change::Put(slot) => self.put_slot(slot),
                Change::Remove => self.remove_slot(&id),
            }
        }
    }

    pub(crate) fn put_slot(&mut self, slot: ApprovedSlot) {
        self.remove_slot(&slot.id);
        if let Some(nic) = slot.nic {
            self.slot_macs.insert(nic.mac, slot.id.clone());
            nic.address.map(|address| self.slot_addresses.insert(address, slot.id.clone()));
        }
        self.slots.insert(slot.id.clone(), slot);
    }

    fn remove_slot(&mut self, id: &SlotId) {
        let Some(nic) = self.slots.remove(id).and_then(|slot| slot.nic) else { return };
        // It may be another slot's by now: a node whose ID becomes another one takes its slots along in one transaction.
        forget(&mut self.slot_macs, nic.mac, id);
        if let Some(address) = nic.address {
            forget(&mut self.slot_addresses, address, id);
        }
    }

    pub(crate) fn put_vm(&mut self, vm: Vm) {
        let old = self.take_vm(vm.uuid());
        if old.as_ref().is_none_or(|old| !old.has_same_nics(&vm)) {
            old.iter().for_each(|old| self.cards.remove(old));
            self.cards.add(&vm);
        }
        // One that is only to be released does not take the name of another.
        let owner = self.names.get(vm.name()).and_then(|owner| self.vms.get(owner));
        if owner.is_none_or(|owner| owner.desired_state == VmDesiredState::Release) {
            self.names.insert(vm.name().clone(), vm.uuid());
        }
        if !vm.stray_nodes.is_empty() {
            self.stray_nodes.insert(vm.uuid());
        }
        if let Some(node) = vm.node() {
            self.held.entry(node).or_default().add(&vm);
            self.closed.forget(node);
        } else {
            self.unplaced.insert(vm.uuid());
        }
        for (node, disks) in &vm.pending_wipes {
            self.held.entry(*node).or_default().owe(vm.uuid(), disks);
        }
        self.vms.insert(vm.uuid(), vm);
    }

    fn remove_vm(&mut self, uuid: SystemUuid) {
        if let Some(old) = self.take_vm(uuid) {
            self.cards.remove(&old);
        }
    }

    /// Takes one out of all but the table of cards.
    fn take_vm(&mut self, uuid: SystemUuid) -> Option<Vm> {
        let old = self.vms.remove(&uuid)?;
        if self.names.get(old.name()) == Some(&uuid) {
            self.names.remove(old.name());
        }
        self.stray_nodes.remove(&uuid);
        self.unplaced.remove(&uuid);
        for node in old.node().into_iter().chain(old.pending_wipes.keys().copied()) {
            self.closed.forget(node);
            if let Some(held) = self.held.get_mut(&node) {
                held.remove(uuid);
                if held.is_empty() {
                    self.held.remove(&node);
                }
            }
        }
        Some(old)
    }
}

/// Takes a key out if it is this slot's.
fn forget<K: Ord>(index: &mut BTreeMap<K, SlotId>, key: K, id: &SlotId) {
    if index.get(&key) == Some(id) {
        index.remove(&key);
    }
}

impl Model {
    /// All nodes, by ID, for who may have to go through them twice.
    pub fn all_nodes(&self) -> impl Iterator<Item = &Node> + Clone {
        self.nodes.values()
    }

    /// All virtual machines, by UUID.
    pub fn vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.vms.values()
    }

    /// The slot that a MAC address belongs to.
    pub fn slot_of_mac(&self, mac: MacAddr) -> Option<&SlotId> {
        self.work.slot_macs.get(&mac)
    }

    /// The slot that an address belongs to.
    pub fn slot_at(&self, address: Ipv4Addr) -> Option<&SlotId> {
        self.work.slot_addresses.get(&address)
    }

    /// All slots that were approved.
    pub fn slots(&self) -> &BTreeMap<SlotId, ApprovedSlot> {
        &self.work.slots
    }

    /// How many virtual machines are on record.
    pub fn vm_count(&self) -> usize {
        self.work.vms.len()
    }

    /// One virtual machine.
    pub fn vm(&self, uuid: SystemUuid) -> Option<&Vm> {
        self.work.vms.get(&uuid)
    }

    /// The virtual machine of a name.
    pub fn vm_named(&self, name: &VmName) -> Option<&Vm> {
        self.vm(*self.work.names.get(name)?)
    }

    /// What of a node is given away to virtual machines; `None` where nothing is.
    pub fn held(&self, node: NodeId) -> Option<&Allocations> {
        self.work.held.get(&node)
    }

    /// The virtual machines that more nodes than their own shall release.
    pub fn stray_vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.stray_nodes.iter().filter_map(|uuid| self.vm(*uuid))
    }

    /// The virtual machines that no node has.
    pub fn unplaced_vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.unplaced.iter().filter_map(|uuid| self.vm(*uuid))
    }

    /// The virtual machines that a node has.
    pub fn vms_of(&self, node: NodeId) -> impl Iterator<Item = &Vm> {
        self.held(node).into_iter().flat_map(Allocations::vms).filter_map(|uuid| self.vm(uuid))
    }
}

impl Tx<'_> {
    /// A virtual machine, as staged or as it was.
    pub fn vm(&self, uuid: SystemUuid) -> Option<&Vm> {
        match self.staged.vms.get(&uuid) {
            Some(change) => change.value(),
            None => self.before().vm(uuid),
        }
    }

    /// All virtual machines, as staged or as they were.
    pub fn all_vms(&self) -> impl Iterator<Item = &Vm> {
        let before = self.before().vms().filter(|vm| !self.staged.vms.contains_key(&vm.uuid()));
        self.staged.vms.values().filter_map(Change::value).chain(before)
    }

    /// Stores a virtual machine.
    pub fn put_vm(&mut self, vm: Vm) {
        self.staged.vms.insert(vm.uuid(), Change::Put(vm));
    }

    /// Stores an approved slot.
    pub fn put_slot(&mut self, slot: ApprovedSlot) {
        self.staged.slots.insert(slot.id.clone(), Change::Put(slot));
    }

    /// Forgets a slot: it is a candidate again.
    pub fn remove_slot(&mut self, id: SlotId) {
        self.staged.slots.insert(id, Change::Remove);
    }
}
