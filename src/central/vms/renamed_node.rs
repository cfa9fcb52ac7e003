//! Moves the work of a node to its new ID.

use crate::{tasks::mark_node_lost, vms::lifecycle::vm_event};
use meshd_model::{
    fleet::{Actor, EventKind},
    work::{ApprovedSlot, SlotId, Vm, slots_of_node},
};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp};

/// Moves VMs and slots of a machine to its new ID while it boots. The VMs keep their former boot
/// session, so that the present one counts as a reboot. Its task loses the node.
pub(crate) fn move_work(tx: &mut Tx<'_>, old: NodeId, new: NodeId, now: Timestamp) {
    for vm in move_vms(tx, old, new) {
        tx.event(vm_event(
            &vm,
            new,
            EventKind::VmMoved,
            Actor::Central,
            format!("its node {old} is {new} now"),
            now,
        ));
    }
    let slots: Vec<ApprovedSlot> =
        slots_of_node(tx.before().slots(), old).map(|(_, slot)| slot.clone()).collect();
    for slot in slots {
        let id = SlotId { node: new, unit: slot.id.unit.clone() };
        tx.remove_slot(slot.id.clone());
        tx.put_slot(ApprovedSlot { id, ..slot });
    }
    mark_node_lost(tx, old, &format!("the node booted again as {new}"), now);
}

/// Replaces a node's ID in all VMs. Returns the VMs that are placed on it.
pub(crate) fn move_vms(tx: &mut Tx<'_>, old: NodeId, new: NodeId) -> Vec<Vm> {
    let is_left = |vm: &Vm| vm.stray_nodes.contains(&old) || vm.former_nodes.contains(&old);
    let is_affected =
        |vm: &&Vm| vm.node() == Some(old) || vm.required_node == Some(old) || is_left(vm);
    let all: Vec<_> = tx.before().vms().filter(is_affected).map(Vm::uuid).collect();
    let mut placed = Vec::new();
    for uuid in all {
        let Some(mut vm) = tx.vm(uuid).cloned() else { continue };
        vm.required_node = vm.required_node.map(|node| if node == old { new } else { node });
        if vm.stray_nodes.remove(&old) {
            vm.stray_nodes.insert(new);
        }
        if vm.former_nodes.remove(&old) {
            vm.former_nodes.insert(new);
        }
        if let Some(disks) = vm.pending_wipes.remove(&old) {
            vm.pending_wipes.insert(new, disks);
        }
        if let Some(placement) = vm.placement.as_mut().filter(|placement| placement.node == old) {
            placement.node = new;
            placed.push(vm.clone());
        }
        tx.put_vm(vm);
    }
    placed
}
