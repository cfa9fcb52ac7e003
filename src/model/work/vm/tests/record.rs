//! Life cycle of a VM record.

use super::*;
use crate::work::vm::phase::VmPhase;
use meshd_config::vm::OnNodeLoss;
use meshd_proto::vm::{RestartWhen, VmFailureKind, VmRefusalReason, VmSpec, Volume};
use meshd_types::{Basis, MacAddr};

fn node() -> NodeId {
    Basis::Mac(MacAddr([2, 0, 0, 0, 0, 1])).node_id()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn placed(when: RestartWhen, on_node_loss: OnNodeLoss) -> Vm {
    let spec = VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    let mut request = VmRequest::new(spec);
    (request.spec.restart.when, request.on_node_loss) = (when, on_node_loss);
    let mut vm = Vm::new(request, None, at(0));
    vm.run();
    vm.assign(
        Placement { node: node(), since: at(0), session: Some(BootSessionId([1; 12])) },
        AssignedParts::default(),
    );
    vm
}

fn report(state: ReportedVmState, restarts: u32) -> VmReport {
    let plain = VmReport::new(SystemUuid([7; 16]), "a".parse().expect("a name"), state);
    VmReport { restarts, ..plain }
}

#[test]
fn report_yields_one_change_and_order_carries_desired_state() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    assert_eq!((vm.phase(true), vm.is_settled()), (VmPhase::Ordered, false));
    assert_eq!(vm.apply_report(report(ReportedVmState::Starting, 0), at(1)), None);
    assert_eq!(
        vm.apply_report(report(ReportedVmState::Running, 0), at(2)),
        Some(VmChange::Started)
    );
    assert_eq!(vm.apply_report(report(ReportedVmState::Running, 0), at(3)), None);
    assert_eq!(vm.last_report.as_ref().map(|last| last.since), Some(at(2)));
    assert!(vm.is_settled() && vm.has_reported(&report(ReportedVmState::Running, 0)));
    assert_eq!((vm.phase(true), vm.phase(false)), (VmPhase::Running, VmPhase::Unreachable));
    let Some(VmEntry { desired_state: VmTarget::Run { start: 1, .. }, .. }) = vm.entry_for(node())
    else {
        panic!("{vm:?}")
    };
    let own = vm.request.grace_s;
    for (grace, expected) in [(None, own), (Some(7), 7), (None, own)] {
        vm.stop(grace);
        assert!(!vm.is_settled());
        assert_eq!(
            vm.entry_for(node()).map(|order| order.desired_state),
            Some(VmTarget::Stop { grace_s: expected })
        );
    }
    assert_eq!(
        vm.apply_report(report(ReportedVmState::Stopped, 0), at(4)),
        Some(VmChange::Stopped)
    );
    assert!(vm.is_settled());
    vm.desired_state = VmDesiredState::Release;
    assert_eq!(vm.phase(true), VmPhase::Releasing);
    assert!(matches!(
        vm.entry_for(node()),
        Some(VmEntry { desired_state: VmTarget::Release { .. }, .. })
    ));
    let other = Basis::Mac(MacAddr([2, 0, 0, 0, 0, 9])).node_id();
    assert_eq!(vm.entry_for(other), None, "it is no concern of another node");
    vm.stray_nodes.insert(other);
    assert!(matches!(
        vm.entry_for(other),
        Some(VmEntry { desired_state: VmTarget::Release { .. }, .. })
    ));
}

#[test]
fn vm_after_node_reboot_follows_restart_policy_once() {
    let next = BootSessionId([2; 12]);
    for (when, loss, again) in [
        (RestartWhen::Never, OnNodeLoss::Wait, false),
        (RestartWhen::Never, OnNodeLoss::Restart, true),
        (RestartWhen::OnFailure, OnNodeLoss::Wait, true),
        (RestartWhen::Always, OnNodeLoss::Wait, true),
    ] {
        let mut vm = placed(when, loss);
        assert_eq!(
            vm.apply_reboot(BootSessionId([1; 12]), true, at(1)),
            None,
            "the boot in which it was placed"
        );
        vm.apply_report(report(ReportedVmState::Running, 0), at(1));
        assert!(matches!(vm.apply_reboot(next, true, at(2)), Some(VmChange::Lost(_))));
        assert_eq!(vm.apply_reboot(next, true, at(3)), None);
        assert_eq!(vm.apply_absence(true, at(4)), None, "that it is not there is known");
        let expected = if again {
            (VmDesiredState::Run, 2, VmPhase::Ordered)
        } else {
            (VmDesiredState::Stop, 1, VmPhase::Failed)
        };
        assert_eq!((vm.desired_state, vm.start, vm.phase(true)), expected, "{when:?} {loss:?}");
        vm.run();
        assert_eq!(vm.phase(true), VmPhase::Ordered);
    }
}

#[test]
fn vm_missing_on_node_is_lost_only_after_its_first_report() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    assert_eq!(vm.apply_absence(true, at(1)), None, "the order may be under way");
    vm.apply_report(report(ReportedVmState::Running, 0), at(2));
    assert!(matches!(vm.apply_absence(true, at(3)), Some(VmChange::Lost(_))));
    assert_eq!((vm.desired_state, vm.phase(true)), (VmDesiredState::Stop, VmPhase::Failed));
}

#[test]
fn vm_bound_to_its_node_may_not_move() {
    let vm = placed(RestartWhen::Never, OnNodeLoss::Restart);
    assert!(vm.may_move());
    let bound = |change: fn(&mut Vm)| {
        let mut vm = vm.clone();
        change(&mut vm);
        vm
    };
    for vm in [
        bound(|vm| vm.request.units.whole = true),
        bound(|vm| vm.request.units.each = vec![meshd_config::vm::UnitSelector::Any]),
        bound(|vm| vm.required_node = vm.node()),
        bound(|vm| vm.request.on_node_loss = OnNodeLoss::Wait),
        bound(|vm| vm.desired_state = VmDesiredState::Stop),
    ] {
        assert!(!vm.may_move(), "{vm:?}");
    }
}

#[test]
fn vm_record_round_trips_with_bounded_failure_text() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    let failure = VmFailure {
        log: vec!["x".into(); 99],
        ..VmFailure::new(VmFailureKind::Crashed, "é".repeat(2000))
    };
    vm.apply_report(
        VmReport { failure: Some(failure), ..report(ReportedVmState::Failed, 3) },
        at(1),
    );
    let failure =
        vm.last_report.as_ref().and_then(|last| last.failure.as_ref()).expect("it failed");
    assert_eq!((failure.detail.len(), failure.log.len()), (MAX_FAILURE_TEXT, MAX_FAILURE_LINES));
    let stored = serde_json::to_string(&vm).expect("plain");
    assert_eq!(serde_json::from_str::<Vm>(&stored).expect("its own text"), vm);
}

#[test]
fn vm_is_settled_only_by_report_of_its_current_start() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    let of = |start: u32, state| VmReport { start: Some(start), ..report(state, 0) };
    assert_eq!(vm.apply_report(of(1, ReportedVmState::Running), at(1)), Some(VmChange::Started));
    assert!(vm.is_settled());
    vm.start_by_operator();
    assert!(!vm.is_settled(), "the restart may be lost");
    assert!(
        vm.has_reported(&of(1, ReportedVmState::Running))
            && !vm.has_reported(&of(2, ReportedVmState::Running))
    );
    assert_eq!(vm.apply_report(of(2, ReportedVmState::Running), at(2)), Some(VmChange::Started));
    assert!(vm.is_settled());
    vm.apply_report(of(2, ReportedVmState::Failed), at(3));
    vm.start_by_operator();
    assert!(!vm.is_settled());
}

#[test]
fn vm_missing_while_starting_is_ordered_again() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    vm.apply_report(report(ReportedVmState::Starting, 0), at(1));
    assert_eq!(vm.apply_absence(true, at(2)), None);
    assert_eq!(
        (vm.desired_state, vm.phase(true), vm.is_settled()),
        (VmDesiredState::Run, VmPhase::Ordered, false)
    );
}

#[test]
fn refused_first_start_is_withdrawn_a_bounded_number_of_times() {
    let other = |number| Basis::Mac(MacAddr([2, 0, 0, 0, 1, number])).node_id();
    let refused = |vm: &Vm, start| {
        let failure = VmFailure::new(VmFailureKind::Refused, "kvm_missing: x".into());
        let mut vm = vm.clone();
        vm.apply_report(
            VmReport { failure: Some(failure), start, ..report(ReportedVmState::Failed, 0) },
            at(1),
        );
        let node = vm.withdraw_refused();
        (vm, node)
    };
    let vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    let (withdrawn, from) = refused(&vm, Some(1));
    assert_eq!(
        (from, withdrawn.placement.is_none(), withdrawn.needs_placement()),
        (Some(node()), true, true)
    );
    assert!(withdrawn.stray_nodes.contains(&node()));
    assert_eq!(refused(&vm, None).1, None);
    let mut again = vm.clone();
    again.run();
    assert_eq!(
        (refused(&again, Some(1)).1, refused(&again, Some(2)).1),
        (None, None),
        "it may have run"
    );
    let mut vm = vm;
    for number in 1..=20 {
        let start = Some(vm.start);
        (vm, _) = refused(&vm, start);
        if !vm.needs_placement() {
            break;
        }
        vm.run();
        vm.assign(
            Placement { node: other(number), since: at(0), session: None },
            AssignedParts::default(),
        );
    }
    assert_eq!(
        (vm.refused.len(), vm.desired_state),
        (crate::work::MAX_REFUSED, VmDesiredState::Stop)
    );
}

#[test]
fn refusal_is_final_by_its_reasons_and_not_by_its_text() {
    let is_tried_again = |reason, detail: &str| {
        let failure = VmFailure {
            reasons: [reason].into(),
            ..VmFailure::new(VmFailureKind::Refused, detail.to_owned())
        };
        let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
        let failed = report(ReportedVmState::Failed, 0);
        vm.apply_report(VmReport { failure: Some(failure), start: Some(1), ..failed }, at(1));
        assert_eq!(vm.withdraw_refused(), Some(node()));
        vm.needs_placement()
    };
    let volume_with_the_name_of_a_reason = "store_full: volume volume_missing: 1 GiB is missing";
    assert!(is_tried_again(VmRefusalReason::StoreFull, volume_with_the_name_of_a_reason));
    assert!(!is_tried_again(VmRefusalReason::VolumeMissing, "no file has the digest"));
}

#[test]
fn disk_use_is_kept_per_node_and_pending_wipes_survive_unplacement() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    let volume = |name: &str, disk: &str| {
        let text = format!(r#"{{"name": "{name}", "format": "raw", "disk": "{disk}"}}"#);
        serde_json::from_str::<Volume>(&text).expect("a volume")
    };
    vm.request.spec.volumes = vec![volume("a", "slot"), volume("b", "eui.2")];
    let placement = vm.placement.clone().expect("it has one");
    let requested = vm.request.clone();
    vm.assign(
        placement,
        AssignedParts {
            disks: vec!["eui.1".parse().expect("an identity")],
            ..AssignedParts::default()
        },
    );
    assert_eq!(
        (vm.spec().volumes[0].clone(), &vm.request),
        (volume("a", "slot:eui.1"), &requested)
    );
    let report = |use_of: &[(&str, DiskUse)]| {
        let disks = use_of
            .iter()
            .map(|(name, disk_use)| (name.parse().expect("a name"), *disk_use))
            .collect();
        VmReport { disks, ..self::report(ReportedVmState::Running, 0) }
    };
    vm.apply_report(
        report(&[("a", DiskUse::Done), ("b", DiskUse::Begun), ("of_another", DiskUse::Done)]),
        at(1),
    );
    vm.apply_report(report(&[("a", DiskUse::Begun)]), at(2));
    assert_eq!(
        vm.disks.values().copied().collect::<Vec<_>>(),
        [DiskUse::Done, DiskUse::Begun],
        "never less"
    );
    assert!(
        vm.has_reported(&report(&[("b", DiskUse::Begun)]))
            && !vm.has_reported(&report(&[("b", DiskUse::Done)]))
    );
    vm.record_pending_wipes();
    vm.unplace("lost".to_owned());
    assert_eq!((vm.disks.len(), vm.volumes().next()), (0, Some(volume("a", "slot"))));
    let left = |disk: &str| ReleasedDisk {
        disk: disk.parse().expect("an identity"),
        wipe: true,
        used: true,
    };
    let order = |vm: &Vm| vm.entry_for(node()).map(|order| order.desired_state);
    assert_eq!(
        order(&vm),
        Some(VmTarget::Release { disks: vec![left("eui.1")] }),
        "the named disk is not wiped"
    );
    let mut cancelled = vm.clone();
    cancelled.cancel_wipes();
    assert_eq!(order(&cancelled), None);
    assert!(vm.confirm_release(node()) && order(&vm).is_none() && vm.pending_wipes.is_empty());
}

#[test]
fn vm_may_run_on_every_node_that_did_not_confirm_its_release() {
    let numbered = |number: u8| Basis::Mac(MacAddr([2, 0, 0, 0, 0, number])).node_id();
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Restart);
    vm.unplace("its node was removed".to_owned());
    vm.assign(
        Placement { node: numbered(2), since: at(1), session: None },
        AssignedParts::default(),
    );
    vm.unplace("its node was fenced".to_owned());
    assert!(
        vm.is_credible_claim(node())
            && vm.is_credible_claim(numbered(2))
            && !vm.is_credible_claim(numbered(99))
    );
    for number in 3..=16 {
        assert!(!vm.is_credible_claim(numbered(99)));
        vm.assign(
            Placement { node: numbered(number), since: at(1), session: None },
            AssignedParts::default(),
        );
        vm.unplace("its node was fenced".to_owned());
    }
    assert!(vm.is_credible_claim(numbered(99)), "a full set may miss a node");
}

#[test]
fn vm_is_settled_although_another_node_has_to_release_a_copy() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    vm.apply_report(report(ReportedVmState::Running, 0), at(2));
    let other = Basis::Mac(MacAddr([2, 0, 0, 0, 0, 2])).node_id();
    vm.stray_nodes.insert(other);
    assert!(vm.is_settled(), "its node follows its order");
    let order = vm.entry_for(other).map(|entry| entry.desired_state);
    assert!(matches!(order, Some(VmTarget::Release { .. })), "{order:?}");
}
