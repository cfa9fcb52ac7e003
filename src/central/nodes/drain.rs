//! Drains a node: it takes no new work, and is in maintenance once nothing runs on it.

use super::{NodeOps, OperateError};
use crate::{
    environment::records::phase_event,
    tasks::edit_task,
    workloads::{story, work_on},
};
use meshd_api::DrainPolicy;
use meshd_model::{
    fleet::{Actor, AuditContext, EventKind, Node, Phase, PhaseChange},
    work::{Vm, VmDesiredState},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::NodeId;

impl NodeOps {
    /// Stops the virtual machines and the task of a node that drains. A grace time also shortens shutdowns that have begun.
    pub(crate) async fn stop_work_on(
        &self,
        id: NodeId,
        grace_s: Option<u32>,
        by: &AuditContext,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let within = grace_s.map_or_else(String::new, |seconds| format!(", within {seconds} s"));
        let detail = format!("shutdown ordered{within}: the node is drained");
        let hurries = |vm: &Vm| vm.desired_state == VmDesiredState::Stop && vm.is_running() && grace_s.is_some();
        self.env
            .store
            .commit(|tx| {
                let own: Vec<Vm> = tx
                    .before()
                    .vms_of(id)
                    .filter(|vm| vm.desired_state == VmDesiredState::Run || hurries(vm))
                    .cloned()
                    .collect();
                for mut vm in own {
                    vm.stop(grace_s);
                    tx.event(story(&vm, id, EventKind::VmOrdered, by, detail.clone(), now));
                    tx.put_vm(vm);
                }
                let task = tx.task_on(id).filter(|task| task.end.is_none()).map(|task| task.id);
                edit_task(tx, task, now, |task| {
                    task.cancel("its node is drained".to_owned(), now);
                });
                Ok::<_, StoreError>(())
            })
            .await?;
        self.workloads.notify_unsettled(id);
        self.tasks.send_orders_of_task_on(id);
        Ok(())
    }

    /// Takes no new work; in maintenance as soon as nothing runs any more.
    pub async fn drain(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        self.drain_with(id, DrainPolicy::Wait, None, by).await
    }

    /// The same, and what runs is stopped if that is wanted: within so many seconds, or within what each guest has by its own.
    pub async fn drain_with(
        &self,
        id: NodeId,
        workloads: DrainPolicy,
        grace_s: Option<u32>,
        by: &AuditContext,
    ) -> Result<Node, OperateError> {
        let node = self.serve_otherwise(id, by, |tx, node| self.drain_begun(tx, node)).await?;
        if workloads == DrainPolicy::Stop {
            self.stop_work_on(id, grace_s, by).await?;
        }
        Ok(node)
    }

    /// The changes of a node that takes no new work.
    pub(super) fn drain_begun(
        &self,
        tx: &Tx<'_>,
        node: &mut Node,
    ) -> Result<Vec<Option<(Phase, Phase)>>, OperateError> {
        let told = self.links.link_state(node.id).heartbeat.is_some_and(|heartbeat| heartbeat.workloads == 0);
        let began = node.drain()?;
        // What was ordered since the node's last word counts as well.
        let ended =
            if told && work_on(tx.before(), node.id).is_empty() { node.change(PhaseChange::Drained)? } else { None };
        Ok(vec![began, ended])
    }

    /// A node says that nothing runs on it; if it drains, that was all there was to wait for.
    pub(crate) async fn drained(&self, id: NodeId) -> Result<(), StoreError> {
        let drains = |model: &Model| model.node(id).is_some_and(|node| node.phase == Phase::Draining);
        let is_over = |model: &Model| drains(model) && work_on(model, id).is_empty();
        if !self.env.store.read(is_over) {
            return Ok(());
        }
        let now = self.env.now();
        self.env
            .store
            .commit(|tx| {
                let is_over = is_over(tx.before());
                let ends = |node: &mut Node| match node.phase {
                    Phase::Draining if is_over => node.change(PhaseChange::Drained).ok().flatten(),
                    _ => None,
                };
                let change = tx.edit_node(id, ends).flatten();
                let boot = tx.node(id).and_then(|node| node.boot);
                phase_event(tx, id, boot, change, Actor::Node, now);
                Ok(())
            })
            .await
    }
}
