//! Refuses orders that would end or lose the work of a node.

use super::VmError;
use crate::serve::central::{error::OperateError, tasks::JobError};
use meshd_model::{
    fleet::{AuditContext, Phase},
    work::Vm,
};
use meshd_store::Model;
use meshd_types::NodeId;

/// Most names that a refusal tells.
const MAX_TOLD: usize = 5;

/// What works on a node, or is ordered to, in words: what a drain waits for.
pub fn work_on(model: &Model, id: NodeId) -> Vec<String> {
    let machines = model.vms_of(id).filter(|vm| vm.may_work()).map(|vm| format!("virtual machine {}", vm.name()));
    machines.chain(model.job_on(id).map(|job| format!("task {}", job.id))).collect()
}

/// Refuses what would end or lose the work of a node, unless it was drained, or whoever orders it says that it may be lost.
pub(crate) fn spare(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
    let drained = model.node(id).is_some_and(|node| node.phase == Phase::Maintenance);
    refuse_loss(model, id, by, |vm| !drained || vm.is_running())
}

/// The same where nothing of a node is left afterwards: being drained is not enough.
pub(crate) fn spare_all(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
    refuse_loss(model, id, by, |_| true)
}

fn refuse_loss(model: &Model, id: NodeId, by: &AuditContext, counts: impl Fn(&Vm) -> bool) -> Result<(), OperateError> {
    spare_task(model, id, by)?;
    let held: Vec<String> = model.vms_of(id).filter(|vm| counts(vm)).map(|vm| vm.name().to_string()).collect();
    if held.is_empty() || by.forced {
        return Ok(());
    }
    let more = held.len().saturating_sub(MAX_TOLD);
    let mut names = held.into_iter().take(MAX_TOLD).collect::<Vec<_>>().join(", ");
    if more > 0 {
        names += &format!(" and {more} more");
    }
    Err(VmError::Holds { node: id, names }.into())
}

/// A task that is over may hold a node that was lost; nothing of it is left to lose.
pub(crate) fn spare_task(model: &Model, id: NodeId, by: &AuditContext) -> Result<(), JobError> {
    let runs = model.job_on(id).filter(|job| !job.state.is_final() && !by.forced);
    runs.map_or(Ok(()), |job| Err(JobError::Holds { node: id, id: job.id }))
}
