//! Moves the work of a node to its new ID.

use crate::{tasks::lose_node, workloads::vms::story};
use meshd_model::{
    fleet::{Actor, EventKind},
    work::{ApprovedSlot, SlotId, Vm, of_node},
};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp};

/// The same machine goes on as `new`, and boots: its virtual machines and slots are there. Their boot is left as it was, so that this
/// one counts as another. A task that it had is over.
pub(crate) fn move_work(tx: &mut Tx<'_>, old: NodeId, new: NodeId, now: Timestamp) {
    for vm in move_vms(tx, old, new) {
        tx.event(story(&vm, new, EventKind::VmMoved, Actor::Central, format!("its node {old} is {new} now"), now));
    }
    let slots: Vec<ApprovedSlot> = of_node(tx.before().slots(), old).map(|(_, slot)| slot.clone()).collect();
    for slot in slots {
        let id = SlotId { node: new, unit: slot.id.unit.clone() };
        tx.remove_slot(slot.id.clone());
        tx.put_slot(ApprovedSlot { id, ..slot });
    }
    lose_node(tx, old, &format!("the node was started anew, as {new}"), now);
}

/// What virtual machines say of `old` they say of `new`; gives those that are there.
pub(crate) fn move_vms(tx: &mut Tx<'_>, old: NodeId, new: NodeId) -> Vec<Vm> {
    let concerned = |vm: &&Vm| vm.node() == Some(old) || vm.only == Some(old) || vm.stray_nodes.contains(&old);
    let all: Vec<_> = tx.before().vms().filter(concerned).map(Vm::uuid).collect();
    let mut moved = Vec::new();
    for uuid in all {
        let Some(mut vm) = tx.vm(uuid).cloned() else { continue };
        vm.only = vm.only.map(|only| if only == old { new } else { only });
        if vm.stray_nodes.remove(&old) {
            vm.stray_nodes.insert(new);
        }
        if let Some(owed) = vm.pending_wipes.remove(&old) {
            vm.pending_wipes.insert(new, owed);
        }
        if let Some(place) = vm.place.as_mut().filter(|place| place.node == old) {
            place.node = new;
            moved.push(vm.clone());
        }
        tx.put_vm(vm);
    }
    moved
}
