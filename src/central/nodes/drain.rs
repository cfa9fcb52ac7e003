//! Drains a node: it accepts no new work, and enters maintenance when its work has ended, also that
//! of other schedulers, whose hooks the agent of the node runs.

use super::{NodeOps, OperateError, lifecycle::PhaseChanges, operations::settle_in};
use crate::{
    environment::records::phase_event,
    links::{LinkId, SpecPart},
    tasks::edit_task,
    vms::{active_work, vm_event},
};
use meshd_model::{
    fleet::{Actor, AuditContext, EventKind, Node, Phase, PhaseChange},
    operations::{NodeOperationState, NodeOrder, drain_entry, has_drain_hooks, waiting_hooks},
    work::{Vm, VmDesiredState},
};
use meshd_proto::{DrainEntry, DrainReport, MAX_DRAIN_HOOKS, Section};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{NodeId, Timestamp};

impl NodeOps {
    /// Starts to drain a node; one without work and without drain hooks enters maintenance at once.
    /// An offline node with work or hooks drains when it returns. Returns the changes of phase.
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
        let is_idle =
            is_idle && !has_drain_hooks(node) && active_work(tx.before(), node.id).is_empty();
        let ended = if is_idle { node.change(PhaseChange::Drained)? } else { None };
        Ok(vec![began, ended])
    }

    /// Moves a draining node to maintenance: its heartbeat reports no work.
    pub(crate) async fn complete_drain(&self, id: NodeId) -> Result<(), StoreError> {
        let drains = |node: &&Node| node.phase == Phase::Draining;
        let is_over = |model: &Model| {
            model
                .node(id)
                .filter(drains)
                .is_some_and(|node| self.drain_work(model, node).is_empty())
        };
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

    /// Names the work for which a drain of a node waits: that on record, and that of drain hooks.
    pub(crate) fn drain_work(&self, model: &Model, node: &Node) -> Vec<String> {
        let mut work = active_work(model, node.id);
        work.extend(self.waiting_hooks(node));
        work
    }

    /// Names the drain hooks of a node out of service that are not done.
    pub fn waiting_hooks(&self, node: &Node) -> Vec<String> {
        waiting_hooks(node, self.links.drain_report(node.id).as_ref())
    }

    /// Repeats the entry of a node that has taken the last one and not followed it. A full queue of
    /// its link may have dropped an order.
    pub(crate) fn repeat_drain_entry(&self, id: NodeId) {
        if !self.links.has_observed_all(id, Section::Drain) {
            return;
        }
        let Some(node) = self.env.store.read(|model| model.node(id).cloned()) else { return };
        let report = self.links.drain_report(id);
        let is_followed = report.is_some_and(|report| report.drains != node.serves())
            && self.waiting_hooks(&node).is_empty();
        if has_drain_hooks(&node) && !is_followed {
            self.links.notify_node(id, SpecPart::Drain);
        }
    }

    /// Handles a report about the drain hooks of a node.
    pub(crate) async fn drain_update(
        &self,
        link: LinkId,
        mut report: DrainReport,
    ) -> Result<(), StoreError> {
        report.hooks.truncate(MAX_DRAIN_HOOKS);
        self.links.record_drain_report(link, report);
        let heartbeat = self.links.link_state(link.node()).heartbeat;
        if heartbeat.is_some_and(|heartbeat| heartbeat.workloads == 0) {
            self.complete_drain(link.node()).await?;
        }
        Ok(())
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

/// Returns the desired state of the drain hooks of a node; `None` if it has none.
pub(crate) fn drain_entry_of(model: &Model, id: NodeId) -> Option<DrainEntry> {
    let mut open = model.open_operations_of(id).filter(|(head, record)| {
        record.state == NodeOperationState::Running && matches!(head.order, NodeOrder::Drain { .. })
    });
    drain_entry(model.node(id)?, open.next().map(|(head, _)| head))
}
