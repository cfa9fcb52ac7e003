//! Frees the virtual machines of a node that is fenced or removed, and places them elsewhere.
//!
//! There are never two copies. A virtual machine leaves its node only after the node has released it, or after the node has lost its
//! credentials and its machine certainly runs no more: it booted again, or an operator says so.

use super::Workloads;
use crate::{
    tasks::lose_node,
    workloads::{slots::forget_slots, vms::story},
};
use meshd_model::{
    fleet::{Actor, AuditContext, Cause, EventKind},
    work::{Vm, VmDesiredState},
};
use meshd_store::Tx;
use meshd_types::{NodeId, SystemUuid, Timestamp};

impl Workloads {
    /// Places virtual machines that lost their node and may move, or that their node refused. Those that do not fit are retried at the
    /// next scan.
    pub(crate) async fn place_waiting(&self) {
        let waiting: Vec<SystemUuid> =
            self.env.store.read(|model| model.unplaced_vms().filter(|vm| vm.needs_placement()).map(Vm::uuid).collect());
        for uuid in waiting {
            self.place_again(uuid).await;
        }
    }

    /// The same for one.
    pub(crate) async fn place_again(&self, uuid: SystemUuid) {
        let (site, now) = (self.env.site(), self.env.now());
        let placed = self.env.store.commit(|tx| {
            let Some(before) = tx.vm(uuid).filter(|vm| vm.needs_placement()).cloned() else { return Ok(None) };
            self.not_elsewhere(uuid)?;
            let mut vm = before.clone();
            vm.run();
            match self.assign(tx, &mut vm, &site, now) {
                Ok(node) => {
                    let detail = format!("is started on {node}");
                    tx.event(story(&vm, node, EventKind::VmMoved, Actor::Central, detail, now));
                    tx.put_vm(vm.clone());
                    Ok(Some(vm))
                }
                Err(error) if !before.may_move() => {
                    vm = before;
                    vm.no_node(&error.to_string());
                    let detail = format!("it has no node: {error}");
                    tx.event(story(&vm, None, EventKind::VmFailed, Actor::Central, detail, now));
                    tx.put_vm(vm);
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        });
        match placed.await {
            Ok(Some(vm)) => self.notify(&vm),
            Ok(None) => {}
            Err(error) => tracing::debug!(%uuid, %error, "a virtual machine finds no other node yet"),
        }
    }
}

/// Releases all virtual machines of a node. Those that were being deleted are removed.
pub(crate) fn free(tx: &mut Tx<'_>, id: NodeId, cause: impl Into<Cause> + Clone, why: &str, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    let stray_nodes: Vec<Vm> = tx.before().stray_vms().filter(|vm| vm.stray_nodes.contains(&id)).cloned().collect();
    for mut vm in own {
        vm.left(id);
        vm.record_pending_wipes();
        if vm.desired_state == VmDesiredState::Release && vm.stray_nodes.is_empty() {
            tx.event(story(&vm, id, EventKind::VmReleased, cause.clone(), why, now));
            tx.remove_vm(vm.uuid());
        } else {
            tx.event(story(&vm, id, EventKind::VmLost, cause.clone(), why, now));
            let unclean = if vm.pending_wipes.contains_key(&id) {
                "; its disks there are wiped when that node is back"
            } else {
                ""
            };
            vm.unplace(format!("{why}{unclean}"));
            tx.put_vm(vm);
        }
    }
    for vm in stray_nodes.into_iter().filter(|vm| !vm.pending_wipes.contains_key(&id)) {
        let Some(mut vm) = tx.vm(vm.uuid()).cloned() else { continue };
        vm.left(id);
        if vm.desired_state == VmDesiredState::Release && vm.place.is_none() && vm.stray_nodes.is_empty() {
            tx.remove_vm(vm.uuid());
        } else {
            tx.put_vm(vm);
        }
    }
}

/// Processes the removal of a node: its virtual machines are released and not started elsewhere, because the machine may still run.
pub(crate) fn forget(tx: &mut Tx<'_>, id: NodeId, by: &AuditContext, now: Timestamp) {
    let own: Vec<Vm> = tx.before().vms_of(id).cloned().collect();
    forget_slots(tx, id);
    lose_node(tx, id, "an operator removed the node", now);
    free(tx, id, by, "its node was removed; it may run there until that machine is switched off", now);
    for before in own {
        if let Some(mut vm) = tx.vm(before.uuid()).filter(|vm| vm.desired_state != VmDesiredState::Release).cloned() {
            vm.desired_state = VmDesiredState::Stop;
            // Its guest may use the addresses of the slot still: they are nobody else's before it has other ones, or is deleted.
            vm.request.spec.nics = before.request.spec.nics;
            tx.put_vm(vm);
        }
    }
    // No node is left to wipe or assign its disks.
    for mut vm in tx.all_vms().filter(|vm| vm.pending_wipes.contains_key(&id)).cloned().collect::<Vec<_>>() {
        vm.left(id);
        if vm.desired_state == VmDesiredState::Release && vm.place.is_none() && vm.stray_nodes.is_empty() {
            tx.remove_vm(vm.uuid());
        } else {
            tx.put_vm(vm);
        }
    }
}
