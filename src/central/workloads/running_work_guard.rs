//! Refuses orders that would end or lose the work of a node.

use meshd_model::{
    fleet::{AuditContext, Phase},
    work::Vm,
};
use meshd_store::Model;
use meshd_types::{NodeId, TaskId};

/// The work that a refused order would end or lose.
#[derive(Debug, thiserror::Error)]
pub enum HeldWork {
    /// Virtual machines.
    #[error(
        "node {node} holds virtual machines: {names}; drain it first (meshd node drain {node} --workloads stop), or give --force: what they wrote is lost then"
    )]
    Vms {
        node: NodeId,
        /// The machines' names.
        names: String,
    },
    /// A task.
    #[error(
        "node {node} runs task {id}; wait for it (meshd node drain {node}), end it (meshd task cancel {id}), or give --force: the task fails then"
    )]
    Task { node: NodeId, id: TaskId },
}

/// Maximum number of names in a refusal.
const MAX_EXPLAINED: usize = 5;

/// Names the present and ordered work of a node, for which a drain waits.
pub fn work_on(model: &Model, id: NodeId) -> Vec<String> {
    let machines = model.vms_of(id).filter(|vm| vm.may_work()).map(|vm| format!("virtual machine {}", vm.name()));
    machines.chain(model.task_on(id).map(|task| format!("task {}", task.id))).collect()
}

/// Refuses an order that would end or lose the work of a node, unless the node was drained or the order is forced.
pub(crate) fn spare(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), HeldWork> {
    let drained = model.node(id).is_some_and(|node| node.phase == Phase::Maintenance);
    refuse_loss(model, id, by, |vm| !drained || vm.is_running())
}

/// The same where nothing of a node is left afterwards: being drained is not enough.
pub(crate) fn spare_all(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), HeldWork> {
    refuse_loss(model, id, by, |_| true)
}

fn refuse_loss(model: &Model, id: NodeId, by: &AuditContext, counts: impl Fn(&Vm) -> bool) -> Result<(), HeldWork> {
    spare_task(model, id, by)?;
    let held: Vec<String> = model.vms_of(id).filter(|vm| counts(vm)).map(|vm| vm.name().to_string()).collect();
    if held.is_empty() || by.forced {
        return Ok(());
    }
    let more = held.len().saturating_sub(MAX_EXPLAINED);
    let mut names = held.into_iter().take(MAX_EXPLAINED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        names += &format!(" and {more} more");
    }
    Err(HeldWork::Vms { node: id, names })
}

/// A task that is over may hold a node that was lost; nothing of it is left to lose.
pub(crate) fn spare_task(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), HeldWork> {
    let runs = model.task_on(id).filter(|task| !task.state.is_final() && !by.forced);
    runs.map_or(Ok(()), |task| Err(HeldWork::Task { node: id, id: task.id }))
}
