//! Operations of each kind: when they are listed, in which state and why.

use super::*;
use crate::{
    fleet::{BootSession, LONGEST_BOOT, Node, Phase, Stage},
    operations::NodeOperation,
    work::{
        AssignedParts, NearestDevices, Placement, Slot, SlotState, Vm, VmDesiredState,
        task::{Launcher, Member, MemberState, Task, TaskSpec, TaskState},
    },
};
use meshd_config::vm::VmRequest;
use meshd_proto::{
    DiskIdentity,
    task::TaskUser,
    vm::{ReportedVmState, VmFailure, VmFailureKind, VmFetching, VmReport, VmSpec},
};
use meshd_types::{BootSessionId, MacAddr, OperationId, SystemUuid, TaskId};
use std::collections::BTreeMap;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn node(phase: Phase) -> Node {
    let mut node = Node::fixture(1);
    (node.phase, node.boot) = (phase, Some(BootSessionId([1; 12])));
    node
}

fn session(stages: &[Stage]) -> BootSession {
    let mut session =
        BootSession::open(BootSessionId([1; 12]), MacAddr([2, 0, 0, 0, 0, 1]), Stage::Dhcp, at(5));
    for stage in stages {
        session.mark(*stage, at(9));
    }
    session
}

fn summary(activity: Option<Activity>) -> Option<(ActivityState, Option<String>)> {
    activity.map(|activity| (activity.state, activity.reason))
}

#[test]
fn boot_is_listed_until_the_node_is_linked_or_switched_off() {
    let now = at(10);
    let late = at(10).after(LONGEST_BOOT + std::time::Duration::from_secs(1));
    let booting = node(Phase::Booting);
    let running =
        boot(&session(&[Stage::Kernel]), Some(&booting), now).expect("a boot in progress");
    assert_eq!(
        (running.state, running.since, running.progress.as_str()),
        (ActivityState::Accepted, Some(at(5)), "kernel")
    );
    assert_eq!((running.object, running.id), (ObjectKind::Node, booting.id.to_string()));
    assert!(
        boot(&session(&[Stage::Kernel]), Some(&booting), late).is_some(),
        "its phase is booting"
    );
    let unknown = boot(&session(&[]), None, now).expect("an unidentified machine");
    assert_eq!((unknown.object, unknown.name.as_str()), (ObjectKind::Machine, "02:00:00:00:00:01"));
    assert_eq!(boot(&session(&[]), None, late), None, "it was switched off");
    assert_eq!(boot(&session(&[Stage::Link]), Some(&node(Phase::Degraded)), now), None);
    assert_eq!(
        boot(&session(&[Stage::Link, Stage::Online]), Some(&node(Phase::Online)), now),
        None
    );
    let mut waiting = session(&[]);
    waiting.record_wait("approval", at(10));
    let found = summary(boot(&waiting, Some(&node(Phase::Discovered)), now));
    assert_eq!(found, Some((ActivityState::Requested, Some("waits for approval".to_owned()))));
    waiting.record_wait("busy", at(11));
    let reason = boot(&waiting, None, at(12)).and_then(|activity| activity.reason);
    assert_eq!(reason.as_deref(), Some("waits in the boot queue"));
    waiting.record_wait("recently_online", at(13));
    let reason = boot(&waiting, None, at(14)).and_then(|activity| activity.reason);
    assert!(reason.is_some_and(|reason| reason.contains("just online")));
    let failed =
        BootSession { failure: Some("bad digest".to_owned()), ..session(&[Stage::Overlay]) };
    let found = summary(boot(&failed, Some(&booting), now));
    assert_eq!(found, Some((ActivityState::Failed, Some("bad digest".to_owned()))));
}

fn started(node: &Node) -> NodeOperation {
    let mut record = NodeOperation::pending(OperationId([1; 4]), node.id, node.name.clone());
    assert!(record.start(at(20)));
    record
}

#[test]
fn reboot_is_requested_then_accepted_and_fails_offline() {
    let online = node(Phase::Online);
    let mut record = started(&online);
    let sent = reboot(&online, &record);
    assert_eq!((sent.state, sent.since), (ActivityState::Requested, Some(at(20))));
    assert!(record.confirm(at(21)));
    let confirmed = reboot(&online, &record);
    assert_eq!((confirmed.state, confirmed.since), (ActivityState::Accepted, Some(at(21))));
    let offline = reboot(&node(Phase::Offline), &record);
    assert!(offline.state == ActivityState::Failed && offline.reason.is_some());
}

#[test]
fn drain_names_the_work_that_it_waits_for() {
    let work = ["VM a".to_owned(), "task 1".to_owned()];
    let draining = node(Phase::Draining);
    let found = summary(Some(drain(&draining, &started(&draining), &work, true)));
    assert_eq!(found, Some((ActivityState::Accepted, Some("waits for VM a, task 1".to_owned()))));
    let mut offline = node(Phase::Offline);
    offline.drains = true;
    let found = summary(Some(drain(&offline, &started(&offline), &[], false)));
    assert_eq!(
        found,
        Some((ActivityState::Requested, Some(format!("node {} has no link", offline.id))))
    );
}

fn placed() -> Vm {
    let spec = VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    let mut vm = Vm::new(VmRequest::new(spec), None, at(1));
    vm.run();
    let placement = Placement { node: node(Phase::Online).id, since: at(2), session: None };
    vm.assign(placement, AssignedParts::default());
    vm
}

fn reported(state: ReportedVmState, failure: Option<&str>) -> Vm {
    let mut vm = placed();
    let failed = |detail: &str| VmFailure::new(VmFailureKind::Crashed, detail.to_owned());
    let failure = failure.map(failed);
    let report = VmReport::new(vm.uuid(), vm.name().clone(), state);
    vm.apply_report(VmReport { failure, start: Some(vm.start), ..report }, at(3));
    vm
}

#[test]
fn vm_is_listed_while_its_reported_state_is_not_the_desired_one() {
    use ActivityState::{Accepted, Failed, Requested};
    let cases = [
        (placed(), VmDesiredState::Run, Some((Requested, None))),
        (reported(ReportedVmState::Starting, None), VmDesiredState::Run, Some((Accepted, None))),
        (reported(ReportedVmState::Running, None), VmDesiredState::Run, None),
        (
            reported(ReportedVmState::Waiting, Some("exit 1")),
            VmDesiredState::Run,
            Some((Accepted, Some("exit 1"))),
        ),
        (
            reported(ReportedVmState::Failed, Some("no disk")),
            VmDesiredState::Run,
            Some((Failed, Some("no disk"))),
        ),
        (
            reported(ReportedVmState::Stopped, None),
            VmDesiredState::Run,
            Some((Failed, Some("the guest is off"))),
        ),
        (reported(ReportedVmState::Running, None), VmDesiredState::Stop, Some((Requested, None))),
        (reported(ReportedVmState::Stopping, None), VmDesiredState::Stop, Some((Accepted, None))),
        (reported(ReportedVmState::Stopped, None), VmDesiredState::Stop, None),
        (
            reported(ReportedVmState::Running, None),
            VmDesiredState::Release,
            Some((Requested, None)),
        ),
    ];
    for (number, (mut vm, desired, expected)) in cases.into_iter().enumerate() {
        vm.desired_state = desired;
        let expected = expected.map(|(state, reason)| (state, reason.map(str::to_owned)));
        assert_eq!(summary(super::vm(&vm, true)), expected, "case {number}");
    }
    let mut blocked = reported(ReportedVmState::Running, None);
    (blocked.desired_state, blocked.obstacle) =
        (VmDesiredState::Release, Some("disk busy".to_owned()));
    assert_eq!(summary(super::vm(&blocked, true)), Some((Failed, Some("disk busy".to_owned()))));
    let mut unplaced = placed();
    unplaced.unplace("no node has a GPU".to_owned());
    assert_eq!(
        summary(super::vm(&unplaced, false)),
        Some((Requested, Some("no node has a GPU".to_owned())))
    );
    let unlinked = super::vm(&placed(), false).and_then(|activity| activity.reason);
    assert!(unlinked.is_some_and(|reason| reason.ends_with("has no link")));
}

#[test]
fn transfer_and_wipe_show_bytes_disks_and_obstacles() {
    let fetching = VmFetching { bytes: 3 << 20, total: 9 << 20, obstacle: None, writing: false };
    let fetch = transfer(&placed(), fetching.clone());
    assert_eq!(
        (fetch.kind, fetch.state, fetch.progress.as_str()),
        (ActivityKind::Fetch, ActivityState::Accepted, "3 of 9 MiB")
    );
    let stuck = transfer(
        &placed(),
        VmFetching { writing: true, obstacle: Some("I/O error".to_owned()), ..fetching },
    );
    assert_eq!((stuck.kind, stuck.state), (ActivityKind::Write, ActivityState::Failed));
    let mut vm = placed();
    let other = node(Phase::Online).id;
    assert_eq!(former_nodes(&vm, |_| true), []);
    vm.stray_nodes.insert(other);
    assert_eq!(former_nodes(&vm, |_| true)[0].kind, ActivityKind::Vm);
    let disk: DiskIdentity = "wwn-1".parse().expect("a disk");
    vm.pending_wipes.insert(other, [disk].into());
    let owed = &former_nodes(&vm, |_| false)[0];
    assert_eq!(
        (owed.kind, owed.request.as_str(), owed.node),
        (ActivityKind::Wipe, "wipe wwn-1", Some(other))
    );
    assert!(owed.reason.is_some(), "its node has no link");
}

#[test]
fn slot_is_listed_while_it_changes() {
    let id: crate::work::SlotId =
        format!("{}/0000:01:00.0", node(Phase::Online).id).parse().expect("a slot");
    for state in SlotState::ALL {
        let approved = None;
        let near = NearestDevices::default();
        let reason = "why".to_owned();
        let numa = None;
        let mismatch = String::new();
        let slot = Slot {
            id: id.clone(),
            state,
            reason,
            numa,
            functions: BTreeMap::new(),
            approved,
            near,
            mismatch,
        };
        let expected = match state {
            SlotState::Provisioning | SlotState::Releasing | SlotState::Cleanup => {
                Some(ActivityState::Accepted)
            }
            SlotState::CleanupBlocked => Some(ActivityState::Failed),
            _ => None,
        };
        assert_eq!(super::slot(&slot, None).map(|activity| activity.state), expected, "{state:?}");
    }
}

#[test]
fn task_is_listed_until_it_ended_and_holds_no_node() {
    let member =
        Member::claimed(node(Phase::Online).id, BootSessionId([1; 12]), [10, 0, 0, 1].into());
    let spec = TaskSpec {
        group: "pair".parse().expect("a name"),
        argv: vec!["./solve".to_owned(), "-x".to_owned()],
        nodes: 1,
        ranks_per_node: 1,
        launcher: Launcher::None,
        user: TaskUser::Default,
        timeout_s: None,
        has_input: false,
    };
    let mut one = Task::claim(TaskId([1; 4]), spec, "uid:0".to_owned(), vec![member], at(4));
    let found = task(&one).expect("a new task");
    assert_eq!((found.request.as_str(), found.state), ("run ./solve -x", ActivityState::Requested));
    one.state = TaskState::Running;
    assert_eq!(task(&one).map(|activity| activity.state), Some(ActivityState::Accepted));
    one.state = TaskState::Failed;
    let lost = task(&one).expect("its node is lost and claimed");
    assert!(
        lost.state == ActivityState::Failed
            && lost.reason.is_some_and(|reason| reason.contains("may still run"))
    );
    one.members[0].state = MemberState::Released;
    assert_eq!(task(&one), None);
}

#[test]
fn list_is_bounded_with_failed_and_old_operations_first() {
    let with = |state, since: i64| Activity {
        state,
        since: Some(at(since)),
        ..transfer(&placed(), VmFetching::default())
    };
    let all = vec![
        with(ActivityState::Accepted, 1),
        with(ActivityState::Failed, 9),
        with(ActivityState::Failed, 2),
    ];
    let (shown, rest) = first(all.clone(), 2);
    let order: Vec<_> = shown.iter().map(|activity| (activity.state, activity.since)).collect();
    assert_eq!(order, [(ActivityState::Failed, Some(at(2))), (ActivityState::Failed, Some(at(9)))]);
    assert_eq!((rest, first(all, 5).1), (1, 0));
}
