//! Refuses orders that would end or lose the work of a node.

use meshd_model::{
    fleet::{AuditContext, Phase},
    work::Vm,
};
use meshd_store::Model;
use meshd_types::{NodeId, TaskId};

/// The work that a refused order would end or lose.
#[derive(Debug, thiserror::Error)]
pub enum RunningWorkError {
    #[error("node {node} holds VMs: {names}")]
    Vms { node: NodeId, names: String },
    #[error("node {node} runs replicas of containers: {names}")]
    Containers { node: NodeId, names: String },
    #[error("node {node} runs task {id}")]
    Task { node: NodeId, id: TaskId },
    #[error("node {node} has approved slots, which the other profile changes: {slots}")]
    Slots { node: NodeId, slots: String },
}

meshd_types::hints!(RunningWorkError {
    RunningWorkError::Vms { node, .. } => "drain it first (meshd node drain {node} --workloads stop), or use --force: their data is lost";
    RunningWorkError::Containers { node, .. } => "drain it first (meshd node drain {node}): other nodes get them; or use --force";
    RunningWorkError::Task { node, id } => "wait for it (meshd node drain {node}), end it (meshd task cancel {id}), or use --force: the task fails";
    RunningWorkError::Slots { node, .. } => "drain it first (meshd node drain {node}), disable the slots, or use --force";
});

/// Maximum number of names in a refusal.
const MAX_NAMES: usize = 5;

/// Names the present and ordered work of a node, for which a drain waits.
pub(crate) fn active_work(model: &Model, id: NodeId) -> Vec<String> {
    let machines =
        model.vms_of(id).filter(|vm| vm.may_work()).map(|vm| format!("VM {}", vm.name()));
    let replicas = model.replicas_of(id).filter(|(container, index)| container.may_work(*index));
    let replicas =
        replicas.map(|(container, index)| format!("container {}", container.replica_id(index)));
    let task = model.task_on(id).map(|task| format!("task {}", task.id));
    machines.chain(replicas).chain(task).collect()
}

/// Refuses an order that would end or lose the work of a node, unless the node was drained or the
/// order is forced.
pub(crate) fn check_no_running_work(
    model: &Model,
    id: NodeId,
    audit: &AuditContext,
) -> Result<(), RunningWorkError> {
    let drained = model.node(id).is_some_and(|node| node.phase == Phase::Maintenance);
    refuse_loss(model, id, audit, |vm| !drained || vm.is_running())
}

/// Refuses an order after which nothing of the node is left, although the node may be drained.
pub(crate) fn check_no_work(
    model: &Model,
    id: NodeId,
    audit: &AuditContext,
) -> Result<(), RunningWorkError> {
    refuse_loss(model, id, audit, |_| true)
}

fn refuse_loss(
    model: &Model,
    id: NodeId,
    audit: &AuditContext,
    is_affected: impl Fn(&Vm) -> bool,
) -> Result<(), RunningWorkError> {
    check_no_task(model, id, audit)?;
    let names: Vec<String> =
        model.vms_of(id).filter(|vm| is_affected(vm)).map(|vm| vm.name().to_string()).collect();
    if !names.is_empty() && !audit.forced {
        return Err(RunningWorkError::Vms { node: id, names: list_names(names) });
    }
    let replicas = model.replicas_of(id).filter(|(container, index)| container.may_work(*index));
    let names: Vec<String> =
        replicas.map(|(container, index)| container.replica_id(index).to_string()).collect();
    if !names.is_empty() && !audit.forced {
        return Err(RunningWorkError::Containers { node: id, names: list_names(names) });
    }
    Ok(())
}

fn list_names(names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let names = names.into_iter().take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

/// Refuses other resources for VMs while a slot of the node is approved and not disabled: it may be
/// available, or its cleanup may be unfinished. A drained node has none that a VM receives (PR-4).
pub(crate) fn check_no_open_slots(
    model: &Model,
    id: NodeId,
    audit: &AuditContext,
) -> Result<(), RunningWorkError> {
    let drained = model.node(id).is_some_and(|node| node.phase == Phase::Maintenance);
    let open = model.slots().values().filter(|slot| slot.id.node == id && slot.disabled.is_none());
    let slots: Vec<String> = open.map(|slot| slot.id.unit.to_string()).collect();
    if slots.is_empty() || drained || audit.forced {
        return Ok(());
    }
    Err(RunningWorkError::Slots { node: id, slots: list_names(slots) })
}

/// Refuses an order that would end a task. A finished task may still occupy a lost node.
pub(crate) fn check_no_task(
    model: &Model,
    id: NodeId,
    audit: &AuditContext,
) -> Result<(), RunningWorkError> {
    let running = model.task_on(id).filter(|task| !task.state.is_final() && !audit.forced);
    running.map_or(Ok(()), |task| Err(RunningWorkError::Task { node: id, id: task.id }))
}
