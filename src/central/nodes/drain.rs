//! Drains a node: it accepts no new work, and enters maintenance when its work has ended.

use super::{NodeOps, OperateError, lifecycle::PhaseChanges, operations::settle_in};
use crate::{
    environment::records::phase_event,
    tasks::edit_task,
    vms::{active_work, vm_event},
};
use meshd_model::{
    fleet::{Actor, AuditContext, EventKind, Node, Phase, PhaseChange},
    work::{Vm, VmDesiredState},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{NodeId, Timestamp};

impl NodeOps {
    /// Starts to drain a node; one without work enters maintenance at once. An offline node with
    /// work drains when it returns. Returns the changes of phase.
    pub(super) fn begin_drain(
        &self,
        tx: &Tx<'_>,
        node: &mut Node,
    ) -> Result<PhaseChanges, OperateError> {
        let is_offline = node.phase == Phase::Offline;
        let is_idle = is_offline
            || self
                .links
                .link_state(node.id)
                .heartbeat
                .is_some_and(|heartbeat| heartbeat.workloads == 0);
        let began = node.drain()?;
        // Work that was ordered since the last heartbeat counts too.
        let is_idle = is_idle && active_work(tx.before(), node.id).is_empty();
        let ended = if is_idle { node.change(PhaseChange::Drained)? } else { None };
        Ok(vec![began, ended])
    }

    /// Moves a draining node to maintenance: its heartbeat reports no work.
    pub(crate) async fn complete_drain(&self, id: NodeId) -> Result<(), StoreError> {
        let drains =
            |model: &Model| model.node(id).is_some_and(|node| node.phase == Phase::Draining);
        let is_over = |model: &Model| drains(model) && active_work(model, id).is_empty();
        if !self.env.store.read(is_over) {
            return Ok(());
        }
        let now = self.env.now();
        let committed = self.env.store.commit(|tx| {
            let is_over = is_over(tx.before());
            let ends = |node: &mut Node| match node.phase {
                Phase::Draining if is_over => node.change(PhaseChange::Drained).ok().flatten(),
                _ => None,
            };
            let change = tx.edit_node(id, ends).flatten();
            let boot = tx.node(id).and_then(|node| node.boot);
            phase_event(tx, id, boot, change, Actor::Node, now);
            settle_in(tx, id, now);
            Ok(())
        });
        committed.await
    }
}

/// Stops the VMs and the task of a draining node, in a transaction. A grace time also shortens
/// shutdowns in progress.
pub(super) fn stop_work_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    grace_s: Option<u32>,
    audit: &AuditContext,
    now: Timestamp,
) {
    let limit = grace_s.map_or_else(String::new, |seconds| format!(", within {seconds} s"));
    let detail = format!("shutdown ordered{limit}: the node is drained");
    let is_stopping =
        |vm: &Vm| vm.desired_state == VmDesiredState::Stop && vm.is_running() && grace_s.is_some();
    let vms: Vec<Vm> = tx
        .before()
        .vms_of(id)
        .filter(|vm| vm.desired_state == VmDesiredState::Run || is_stopping(vm))
        .cloned()
        .collect();
    for mut vm in vms {
        vm.stop(grace_s);
        tx.event(vm_event(&vm, id, EventKind::VmOrdered, audit, detail.clone(), now));
        tx.put_vm(vm);
    }
    let task = tx.task_on(id).filter(|task| task.end.is_none()).map(|task| task.id);
    edit_task(tx, task, now, |task| {
        task.cancel("its node is drained".to_owned(), now);
    });
}
