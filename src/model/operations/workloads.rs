//! Operations of VMs with their volumes and disks, of slots, and of tasks.

use super::{ObjectKind, Operation, OperationKind, OperationState};
use crate::work::{
    Slot, SlotState, Vm, VmDesiredState,
    task::{Task, TaskState},
};
use meshd_proto::vm::{ReportedVmState, VmFetching};
use meshd_types::{NodeId, Timestamp};

/// Maximum number of lost nodes that a reason names.
const MAX_LOST_NAMED: usize = 8;

fn of_vm(vm: &Vm, kind: OperationKind, node: Option<NodeId>, request: &str) -> Operation {
    let placed = vm.placement.as_ref().map(|placement| placement.since);
    let since = Some(vm.last_report.as_ref().map(|last| last.since).or(placed).unwrap_or(vm.created_at));
    let operation = Operation::new(kind, ObjectKind::Vm, vm.uuid().to_string(), request);
    Operation { name: vm.name().to_string(), node, since, ..operation }
}

/// Returns an operation if the reported state of a VM is not the desired one.
pub fn vm(vm: &Vm, is_linked: bool) -> Option<Operation> {
    let (request, (state, reason)) = match vm.desired_state {
        VmDesiredState::Run => ("run", run(vm)?),
        VmDesiredState::Stop => ("stop", stop(vm)?),
        VmDesiredState::Release => ("delete", release(vm)?),
    };
    let operation = of_vm(vm, OperationKind::Vm, vm.node(), request);
    let progress = vm.last_report.as_ref().map(|last| last.state.as_str().to_owned()).unwrap_or_default();
    Some(Operation { state, progress, reason, ..operation }.without_link(is_linked))
}

fn run(vm: &Vm) -> Option<(OperationState, Option<String>)> {
    if vm.placement.is_none() || vm.unconfirmed {
        return Some((OperationState::Requested, vm.obstacle.clone()));
    }
    let last = vm.last_report.as_ref().filter(|last| last.start.is_none_or(|start| start == vm.start));
    let Some(last) = last else { return Some((OperationState::Requested, None)) };
    let failure = last.failure.as_ref().map(|failure| failure.detail.clone());
    let failed = |text: &str| Some((OperationState::Failed, Some(failure.clone().unwrap_or_else(|| text.to_owned()))));
    match last.state {
        ReportedVmState::Running => None,
        ReportedVmState::Starting | ReportedVmState::Waiting => Some((OperationState::Accepted, failure)),
        ReportedVmState::Stopping => Some((OperationState::Requested, None)),
        ReportedVmState::Paused => failed("the node paused the guest"),
        ReportedVmState::Stopped => failed("the guest is off"),
        ReportedVmState::Failed => failed("it failed"),
    }
}

fn stop(vm: &Vm) -> Option<(OperationState, Option<String>)> {
    match vm.last_report.as_ref()?.state {
        ReportedVmState::Stopped | ReportedVmState::Failed => None,
        ReportedVmState::Stopping => Some((OperationState::Accepted, None)),
        ReportedVmState::Starting | ReportedVmState::Running | ReportedVmState::Paused | ReportedVmState::Waiting => {
            Some((OperationState::Requested, None))
        }
    }
}

fn release(vm: &Vm) -> Option<(OperationState, Option<String>)> {
    // Without placement only former nodes have parts of the VM; `former_nodes` reports them.
    vm.placement.as_ref()?;
    match (&vm.obstacle, vm.last_report.as_ref().map(|last| last.state)) {
        (Some(obstacle), _) => Some((OperationState::Failed, Some(obstacle.clone()))),
        (None, Some(ReportedVmState::Stopping)) => Some((OperationState::Accepted, None)),
        (None, _) => Some((OperationState::Requested, None)),
    }
}

/// Returns the wipe of the disks that a VM leaves on its node when it is deleted.
pub fn wipe(vm: &Vm, is_linked: bool) -> Option<Operation> {
    let node = vm.node().filter(|_| vm.desired_state == VmDesiredState::Release)?;
    let (state, reason) = release(vm)?;
    let operation = wipe_operation(vm, node)?;
    Some(Operation { state, reason, ..operation }.without_link(is_linked))
}

/// Returns the releases and wipes that former nodes of a VM have not confirmed.
pub fn former_nodes(vm: &Vm, is_linked: impl Fn(NodeId) -> bool) -> Vec<Operation> {
    let of = |node: &NodeId| {
        let release = || of_vm(vm, OperationKind::Vm, Some(*node), "release on its former node");
        wipe_operation(vm, *node).unwrap_or_else(release).without_link(is_linked(*node))
    };
    vm.stray_nodes.iter().map(of).collect()
}

fn wipe_operation(vm: &Vm, node: NodeId) -> Option<Operation> {
    let disks: Vec<String> = vm.wiped_disks(node).iter().map(ToString::to_string).collect();
    let request = format!("wipe {}", disks.join(", "));
    (!disks.is_empty()).then(|| of_vm(vm, OperationKind::Wipe, Some(node), &request))
}

/// Returns the transfer of a VM's volumes to its node, or the write of an image onto a disk.
pub fn transfer(vm: &Vm, fetching: VmFetching) -> Operation {
    let VmFetching { bytes, total, obstacle, writing } = fetching;
    let (kind, request) =
        if writing { (OperationKind::Write, "write disks") } else { (OperationKind::Fetch, "fetch volumes") };
    let progress = format!("{} of {} MiB", bytes >> 20, total >> 20);
    let state = if obstacle.is_some() { OperationState::Failed } else { OperationState::Accepted };
    Operation { state, progress, reason: obstacle, ..of_vm(vm, kind, vm.node(), request) }
}

/// Returns an operation if a slot is being assigned, released or cleaned up.
pub fn slot(slot: &Slot, since: Option<Timestamp>) -> Option<Operation> {
    let (request, state) = match slot.state {
        SlotState::Provisioning => ("provision", OperationState::Accepted),
        SlotState::Releasing => ("release", OperationState::Accepted),
        SlotState::Cleanup => ("clean up", OperationState::Accepted),
        SlotState::CleanupBlocked => ("clean up", OperationState::Failed),
        _ => return None,
    };
    Some(Operation {
        node: Some(slot.id.node),
        since,
        state,
        progress: slot.state.as_str().to_owned(),
        reason: Some(slot.reason.clone()).filter(|reason| !reason.is_empty()),
        ..Operation::new(OperationKind::Slot, ObjectKind::Slot, slot.id.to_string(), request)
    })
}

/// Returns an operation while a task has not ended or still holds a node.
pub fn task(task: &Task) -> Option<Operation> {
    if !task.is_open() {
        return None;
    }
    let end = task.end.as_ref().map(|end| end.detail.clone());
    let (state, reason) = match task.state {
        TaskState::Starting => (OperationState::Requested, None),
        TaskState::Running => (OperationState::Accepted, None),
        TaskState::Ending => (OperationState::Accepted, end),
        TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled | TaskState::TimedOut => {
            let nodes: Vec<String> = task.holding().take(MAX_LOST_NAMED).map(|node| node.to_string()).collect();
            let reason = format!("its processes may still run on {}", nodes.join(", "));
            (OperationState::Failed, Some(reason))
        }
    };
    let request = format!("run {}", task.spec.argv.join(" "));
    Some(Operation {
        node: task.members.first().filter(|_| task.members.len() == 1).map(|member| member.node),
        since: Some(task.created_at),
        state,
        progress: format!("{}, {} nodes", task.state.as_str(), task.members.len()),
        reason,
        ..Operation::new(OperationKind::Task, ObjectKind::Task, task.id.to_string(), request)
    })
}
