//! Operations of VMs with their volumes and disks, of slots, and of tasks.

use super::{Activity, ActivityKind, ActivityState, ObjectKind};
use crate::work::{
    Slot, SlotState, Vm, VmDesiredState,
    task::{Task, TaskState},
};
use meshd_proto::vm::{ReportedVmState, VmFetching};
use meshd_types::{NodeId, Timestamp};

/// Maximum number of lost nodes that a reason names.
const MAX_LOST_NAMED: usize = 8;

fn of_vm(vm: &Vm, kind: ActivityKind, node: Option<NodeId>, request: &str) -> Activity {
    let placed = vm.placement.as_ref().map(|placement| placement.since);
    let since =
        Some(vm.last_report.as_ref().map(|last| last.since).or(placed).unwrap_or(vm.created_at));
    let activity = Activity::new(kind, ObjectKind::Vm, vm.uuid().to_string(), request);
    Activity { name: vm.name().to_string(), node, since, ..activity }
}

/// Returns an activity if the reported state of a VM is not the desired one.
pub fn vm(vm: &Vm, is_linked: bool) -> Option<Activity> {
    let (request, (state, reason)) = match vm.desired_state {
        VmDesiredState::Run => ("run", run(vm)?),
        VmDesiredState::Stop => ("stop", stop(vm)?),
        VmDesiredState::Release => ("delete", release(vm)?),
    };
    let activity = of_vm(vm, ActivityKind::Vm, vm.node(), request);
    let progress =
        vm.last_report.as_ref().map(|last| last.state.as_str().to_owned()).unwrap_or_default();
    Some(Activity { state, progress, reason, ..activity }.without_link(is_linked))
}

fn run(vm: &Vm) -> Option<(ActivityState, Option<String>)> {
    if vm.placement.is_none() || vm.unconfirmed {
        return Some((ActivityState::Requested, vm.obstacle.clone()));
    }
    let last =
        vm.last_report.as_ref().filter(|last| last.start.is_none_or(|start| start == vm.start));
    let Some(last) = last else { return Some((ActivityState::Requested, None)) };
    let failure = last.failure.as_ref().map(|failure| failure.detail.clone());
    let failed = |text: &str| {
        Some((ActivityState::Failed, Some(failure.clone().unwrap_or_else(|| text.to_owned()))))
    };
    match last.state {
        ReportedVmState::Running => None,
        ReportedVmState::Starting | ReportedVmState::Waiting => {
            Some((ActivityState::Accepted, failure))
        }
        ReportedVmState::Stopping => Some((ActivityState::Requested, None)),
        ReportedVmState::Paused => failed("the node paused the guest"),
        ReportedVmState::Stopped => failed("the guest is off"),
        ReportedVmState::Failed => failed("it failed"),
    }
}

fn stop(vm: &Vm) -> Option<(ActivityState, Option<String>)> {
    match vm.last_report.as_ref()?.state {
        ReportedVmState::Stopped | ReportedVmState::Failed => None,
        ReportedVmState::Stopping => Some((ActivityState::Accepted, None)),
        ReportedVmState::Starting
        | ReportedVmState::Running
        | ReportedVmState::Paused
        | ReportedVmState::Waiting => Some((ActivityState::Requested, None)),
    }
}

fn release(vm: &Vm) -> Option<(ActivityState, Option<String>)> {
    // Without placement only former nodes have parts of the VM; `former_nodes` reports them.
    vm.placement.as_ref()?;
    match (&vm.obstacle, vm.last_report.as_ref().map(|last| last.state)) {
        (Some(obstacle), _) => Some((ActivityState::Failed, Some(obstacle.clone()))),
        (None, Some(ReportedVmState::Stopping)) => Some((ActivityState::Accepted, None)),
        (None, _) => Some((ActivityState::Requested, None)),
    }
}

/// Returns the wipe of the disks that a VM leaves on its node when it is deleted.
pub fn wipe(vm: &Vm, is_linked: bool) -> Option<Activity> {
    let node = vm.node().filter(|_| vm.desired_state == VmDesiredState::Release)?;
    let (state, reason) = release(vm)?;
    let activity = wipe_activity(vm, node)?;
    Some(Activity { state, reason, ..activity }.without_link(is_linked))
}

/// Returns the releases and wipes that former nodes of a VM have not confirmed.
pub fn former_nodes(vm: &Vm, is_linked: impl Fn(NodeId) -> bool) -> Vec<Activity> {
    let of = |node: &NodeId| {
        let release = || of_vm(vm, ActivityKind::Vm, Some(*node), "release on its former node");
        wipe_activity(vm, *node).unwrap_or_else(release).without_link(is_linked(*node))
    };
    vm.stray_nodes.iter().map(of).collect()
}

fn wipe_activity(vm: &Vm, node: NodeId) -> Option<Activity> {
    let disks: Vec<String> = vm.wiped_disks(node).iter().map(ToString::to_string).collect();
    let request = format!("wipe {}", disks.join(", "));
    (!disks.is_empty()).then(|| of_vm(vm, ActivityKind::Wipe, Some(node), &request))
}

/// Returns the transfer of a VM's volumes to its node, or the write of an image onto a disk.
pub fn transfer(vm: &Vm, fetching: VmFetching) -> Activity {
    let VmFetching { bytes, total, obstacle, writing } = fetching;
    let (kind, request) = if writing {
        (ActivityKind::Write, "write disks")
    } else {
        (ActivityKind::Fetch, "fetch volumes")
    };
    let progress = format!("{} of {} MiB", bytes >> 20, total >> 20);
    let state = if obstacle.is_some() { ActivityState::Failed } else { ActivityState::Accepted };
    Activity { state, progress, reason: obstacle, ..of_vm(vm, kind, vm.node(), request) }
}

/// Returns an activity if a slot is being assigned, released or cleaned up.
pub fn slot(slot: &Slot, since: Option<Timestamp>) -> Option<Activity> {
    let (request, state) = match slot.state {
        SlotState::Provisioning => ("provision", ActivityState::Accepted),
        SlotState::Releasing => ("release", ActivityState::Accepted),
        SlotState::Cleanup => ("clean up", ActivityState::Accepted),
        SlotState::CleanupBlocked => ("clean up", ActivityState::Failed),
        _ => return None,
    };
    Some(Activity {
        node: Some(slot.id.node),
        since,
        state,
        progress: slot.state.as_str().to_owned(),
        reason: Some(slot.reason.clone()).filter(|reason| !reason.is_empty()),
        ..Activity::new(ActivityKind::Slot, ObjectKind::Slot, slot.id.to_string(), request)
    })
}

/// Returns an activity while a task has not ended or still holds a node.
pub fn task(task: &Task) -> Option<Activity> {
    if !task.is_open() {
        return None;
    }
    let end = task.end.as_ref().map(|end| end.detail.clone());
    let (state, reason) = match task.state {
        TaskState::Starting => (ActivityState::Requested, None),
        TaskState::Running => (ActivityState::Accepted, None),
        TaskState::Ending => (ActivityState::Accepted, end),
        TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled | TaskState::TimedOut => {
            let nodes: Vec<String> =
                task.holding().take(MAX_LOST_NAMED).map(|node| node.to_string()).collect();
            let reason = format!("its processes may still run on {}", nodes.join(", "));
            (ActivityState::Failed, Some(reason))
        }
    };
    let request = format!("run {}", task.spec.argv.join(" "));
    Some(Activity {
        node: task.members.first().filter(|_| task.members.len() == 1).map(|member| member.node),
        since: Some(task.created_at),
        state,
        progress: format!("{}, {} nodes", task.state.as_str(), task.members.len()),
        reason,
        ..Activity::new(ActivityKind::Task, ObjectKind::Task, task.id.to_string(), request)
    })
}
