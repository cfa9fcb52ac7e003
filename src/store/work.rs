//! What nodes are given to do: the tables of work, and what of each node is given away.

use super::{
    Model,
    tx::{Change, Tx},
};
use crate::fleet::Node;
use crate::id::{NodeId, SystemUuid, VmName};
use crate::work::{Approved, Held, SlotId, Vm};
use std::collections::{BTreeMap, BTreeSet};

/// Virtual machines, and the indexes that are derived from them.
#[derive(Default)]
pub(super) struct Work {
    vms: BTreeMap<SystemUuid, Vm>,
    pub(super) slots: BTreeMap<SlotId, Approved>,
    /// Derived: a name is unique.
    names: BTreeMap<VmName, SystemUuid>,
    /// Derived: those that other nodes shall release, too.
    strays: BTreeSet<SystemUuid>,
    /// Derived: those without a node.
    unplaced: BTreeSet<SystemUuid>,
    /// Derived: what the machines of a node hold.
    held: BTreeMap<NodeId, Held>,
}

impl Work {
    pub(super) fn apply(&mut self, vms: BTreeMap<SystemUuid, Change<Vm>>, slots: BTreeMap<SlotId, Change<Approved>>) {
        for (uuid, change) in vms {
            match change {
                Change::Put(vm) => self.put_vm(vm),
                Change::Remove => self.remove_vm(uuid),
            }
        }
        for (id, change) in slots {
            match change {
                Change::Put(slot) => drop(self.slots.insert(id, slot)),
                Change::Remove => drop(self.slots.remove(&id)),
            }
        }
    }

    pub(super) fn put_vm(&mut self, vm: Vm) {
        self.remove_vm(vm.uuid());
        self.names.insert(vm.name().clone(), vm.uuid());
        if !vm.strays.is_empty() {
            self.strays.insert(vm.uuid());
        }
        if let Some(node) = vm.node() {
            self.held.entry(node).or_default().add(&vm);
        } else {
            self.unplaced.insert(vm.uuid());
        }
        self.vms.insert(vm.uuid(), vm);
    }

    pub(super) fn remove_vm(&mut self, uuid: SystemUuid) {
        let Some(old) = self.vms.remove(&uuid) else { return };
        if self.names.get(old.name()) == Some(&uuid) {
            self.names.remove(old.name());
        }
        self.strays.remove(&uuid);
        self.unplaced.remove(&uuid);
        let Some(node) = old.node() else { return };
        if let Some(held) = self.held.get_mut(&node) {
            held.remove(uuid);
            if held.is_empty() {
                self.held.remove(&node);
            }
        }
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

    /// All slots that were approved.
    pub fn slots(&self) -> &BTreeMap<SlotId, Approved> {
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
    pub fn held(&self, node: NodeId) -> Option<&Held> {
        self.work.held.get(&node)
    }

    /// The virtual machines that more nodes than their own shall release.
    pub fn stray_vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.strays.iter().filter_map(|uuid| self.vm(*uuid))
    }

    /// The virtual machines that no node has.
    pub fn unplaced_vms(&self) -> impl Iterator<Item = &Vm> {
        self.work.unplaced.iter().filter_map(|uuid| self.vm(*uuid))
    }

    /// The virtual machines that a node has.
    pub fn vms_of(&self, node: NodeId) -> impl Iterator<Item = &Vm> {
        self.held(node).into_iter().flat_map(Held::vms).filter_map(|uuid| self.vm(uuid))
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

    /// Stores a virtual machine.
    pub fn put_vm(&mut self, vm: Vm) {
        self.staged.vms.insert(vm.uuid(), Change::Put(vm));
    }

    /// Stores an approved slot.
    pub fn put_slot(&mut self, slot: Approved) {
        self.staged.slots.insert(slot.id.clone(), Change::Put(slot));
    }

    /// Forgets a slot: it is a candidate again.
    pub fn remove_slot(&mut self, id: SlotId) {
        self.staged.slots.insert(id, Change::Remove);
    }

    /// Forgets a virtual machine.
    pub fn remove_vm(&mut self, uuid: SystemUuid) {
        self.staged.vms.insert(uuid, Change::Remove);
    }
}
