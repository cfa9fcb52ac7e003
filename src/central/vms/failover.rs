//! Frees the VMs of a node that is fenced or removed, and places them elsewhere.
//!
//! There are never two copies of a VM. A VM leaves its node only after the node has released it, or
//! after the node has lost its credentials and its machine is certainly off: the machine booted
//! again, or an operator fenced it.

use super::Vms;
use crate::{
    tasks::mark_node_lost,
    vms::{lifecycle::vm_event, slots::remove_slots},
};
use meshd_model::{
    fleet::{Actor, AuditContext, Cause, EventKind},
    work::{Vm, VmDesiredState},
};
use meshd_store::Tx;
use meshd_types::{NodeId, SystemUuid, Timestamp};

impl Vms {
    /// Places VMs that lost their node and may move, or that their node refused. Those that do not
    /// fit are retried at the next scan.
    pub(crate) async fn place_unplaced_vms(&self) {
        let waiting: Vec<SystemUuid> = self.env.store.read(|model| {
            model.unplaced_vms().filter(|vm| vm.needs_placement()).map(Vm::uuid).collect()
        });
        for uuid in waiting {
            self.place_vm(uuid).await;
        }
    }

    /// Places one waiting VM. A VM that cannot move gets the reason in its record.
    pub(crate) async fn place_vm(&self, uuid: SystemUuid) {
        let site = self.env.site();
        let now = self.env.now();
        let placed = self.env.store.commit(|tx| {
            let Some(before) = tx.vm(uuid).filter(|vm| vm.needs_placement()).cloned() else {
                return Ok(None);
            };
            self.check_not_elsewhere(tx.before(), uuid, false)?;
            let mut vm = before.clone();
            vm.run();
            match self.choose_node_in(tx, &mut vm, &site, now) {
                Ok(node) => {
                    let detail = format!("is started on {node}");
                    tx.event(vm_event(&vm, node, EventKind::VmMoved, Actor::Central, detail, now));
                    tx.put_vm(vm.clone());
                    Ok(Some(vm))
                }
                Err(error) if !before.may_move() => {
                    vm = before;
                    vm.stop_without_node(&error.to_string());
                    let detail = format!("it has no node: {error}");
                    tx.event(vm_event(&vm, None, EventKind::VmFailed, Actor::Central, detail, now));
                    tx.put_vm(vm);
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        });
        match placed.await {
            Ok(Some(vm)) => self.notify(&vm),
            Ok(None) => {}
            Err(error) => tracing::debug!(%uuid, %error, "no other node can run the VM yet"),
        }
    }
}

/// Stores a VM, or removes the record of a deleted VM that no node has any more.
pub(super) fn put_or_remove(tx: &mut Tx<'_>, vm: Vm) {
    if vm.desired_state == VmDesiredState::Release
        && vm.placement.is_none()
        && vm.stray_nodes.is_empty()
    {
        tx.remove_vm(vm.uuid());
    } else {
        tx.put_vm(vm);
    }
}

/// Releases all VMs of a node. Those that were being deleted are removed.
pub(crate) fn release_vms(
    tx: &mut Tx<'_>,
    id: NodeId,
    cause: impl Into<Cause> + Clone,
    why: &str,
    now: Timestamp,
) {
    let vms: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    let strays: Vec<Vm> =
        tx.before().stray_vms().filter(|vm| vm.stray_nodes.contains(&id)).cloned().collect();
    for mut vm in vms {
        vm.confirm_release(id);
        vm.record_pending_wipes();
        if vm.desired_state == VmDesiredState::Release && vm.stray_nodes.is_empty() {
            tx.event(vm_event(&vm, id, EventKind::VmReleased, cause.clone(), why, now));
            tx.remove_vm(vm.uuid());
        } else {
            tx.event(vm_event(&vm, id, EventKind::VmLost, cause.clone(), why, now));
            let unclean = if vm.pending_wipes.contains_key(&id) {
                "; its disks there are wiped when that node is back"
            } else {
                ""
            };
            vm.unplace(format!("{why}{unclean}"));
            tx.put_vm(vm);
        }
    }
    for vm in strays.into_iter().filter(|vm| !vm.pending_wipes.contains_key(&id)) {
        let Some(mut vm) = tx.vm(vm.uuid()).cloned() else { continue };
        vm.confirm_release(id);
        put_or_remove(tx, vm);
    }
}

/// Processes the removal of a node: its VMs are released and not started elsewhere, because the
/// machine may still run.
pub(crate) fn remove_node_work(tx: &mut Tx<'_>, id: NodeId, audit: &AuditContext, now: Timestamp) {
    let vms: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    remove_slots(tx, id);
    mark_node_lost(tx, id, "an operator removed the node", now);
    release_vms(
        tx,
        id,
        audit,
        "its node was removed; it may run there until that machine is switched off",
        now,
    );
    for before in vms {
        if let Some(mut vm) =
            tx.vm(before.uuid()).filter(|vm| vm.desired_state != VmDesiredState::Release).cloned()
        {
            vm.desired_state = VmDesiredState::Stop;
            // The guest may still use the addresses of its slot, so they stay reserved.
            vm.assigned.nics = before.assigned.nics;
            tx.put_vm(vm);
        }
    }
    // The removed node can no longer wipe disks.
    for mut vm in
        tx.all_vms().filter(|vm| vm.pending_wipes.contains_key(&id)).cloned().collect::<Vec<_>>()
    {
        vm.confirm_release(id);
        put_or_remove(tx, vm);
    }
}
