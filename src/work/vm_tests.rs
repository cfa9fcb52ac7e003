//! The life of a virtual machine on record.

use super::*;
use crate::id::{Basis, MacAddr};
use crate::wire::vm::VmSpec;

fn node() -> NodeId {
    Basis::Mac(MacAddr([2, 0, 0, 0, 0, 1])).node_id()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn placed(when: RestartWhen, on_node_loss: OnNodeLoss) -> Vm {
    let spec = VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    let mut ask = VmAsk::new(spec);
    (ask.spec.restart.when, ask.on_node_loss) = (when, on_node_loss);
    let mut vm = Vm::new(ask, None, at(0));
    vm.run();
    vm.settle(Place { node: node(), since: at(0), session: Some(BootSessionId([1; 12])) }, Vec::new());
    vm
}

fn report(state: VmState, restarts: u32) -> VmReport {
    VmReport {
        uuid: SystemUuid([7; 16]),
        name: "a".parse().expect("a name"),
        state,
        failure: None,
        restarts,
        fetching: None,
    }
}

#[test]
fn what_is_told_is_news_once_and_the_order_is_the_whole_wish() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    assert_eq!((vm.life(true), vm.is_settled()), (VmLife::Ordered, false));
    assert_eq!(vm.tell(report(VmState::Starting, 0), at(1)), None);
    assert_eq!(vm.tell(report(VmState::Running, 0), at(2)), Some(VmTold::Started));
    assert_eq!(vm.tell(report(VmState::Running, 0), at(3)), None);
    assert_eq!(vm.seen.as_ref().map(|seen| seen.since), Some(at(2)));
    assert!(vm.is_settled() && vm.has_told(&report(VmState::Running, 0)));
    assert_eq!((vm.life(true), vm.life(false)), (VmLife::Running, VmLife::Unreachable));
    let Some(VmOrder { want: VmWant::Run { start: 1, .. }, .. }) = vm.order(node()) else { panic!("{vm:?}") };
    vm.wish = VmWish::Stop;
    assert!(!vm.is_settled());
    assert!(matches!(vm.order(node()), Some(VmOrder { want: VmWant::Stop { .. }, .. })));
    assert_eq!(vm.tell(report(VmState::Stopped, 0), at(4)), Some(VmTold::Stopped));
    assert!(vm.is_settled());
    vm.wish = VmWish::Release;
    assert_eq!(vm.life(true), VmLife::Releasing);
    assert!(matches!(vm.order(node()), Some(VmOrder { want: VmWant::Release, .. })));
    let other = Basis::Mac(MacAddr([2, 0, 0, 0, 0, 9])).node_id();
    assert_eq!(vm.order(other), None, "it is no concern of another node");
    vm.strays.insert(other);
    assert!(matches!(vm.order(other), Some(VmOrder { want: VmWant::Release, .. })));
}

#[test]
fn after_a_reboot_of_its_node_the_restart_policy_decides_and_is_told_once() {
    let next = BootSessionId([2; 12]);
    for (when, loss, again) in [
        (RestartWhen::Never, OnNodeLoss::Wait, false),
        (RestartWhen::Never, OnNodeLoss::Restart, true),
        (RestartWhen::OnFailure, OnNodeLoss::Wait, true),
        (RestartWhen::Always, OnNodeLoss::Wait, true),
    ] {
        let mut vm = placed(when, loss);
        assert_eq!(vm.rebooted(BootSessionId([1; 12]), at(1)), None, "the boot in which it was placed");
        vm.tell(report(VmState::Running, 0), at(1));
        assert!(matches!(vm.rebooted(next, at(2)), Some(VmTold::Lost(_))));
        assert_eq!(vm.rebooted(next, at(3)), None);
        assert_eq!(vm.missing(at(4)), None, "that it is not there is known");
        let expected = if again { (VmWish::Run, 2, VmLife::Ordered) } else { (VmWish::Stop, 1, VmLife::Failed) };
        assert_eq!((vm.wish, vm.start, vm.life(true)), expected, "{when:?} {loss:?}");
        vm.run();
        assert_eq!(vm.life(true), VmLife::Ordered);
    }
}

#[test]
fn one_that_its_node_has_no_more_is_lost_and_one_that_it_never_had_is_awaited() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    assert_eq!(vm.missing(at(1)), None, "the order may be under way");
    vm.tell(report(VmState::Running, 0), at(2));
    assert!(matches!(vm.missing(at(3)), Some(VmTold::Lost(_))));
    assert_eq!((vm.wish, vm.life(true)), (VmWish::Stop, VmLife::Failed));
}

#[test]
fn only_one_that_stands_on_nothing_of_its_node_may_move() {
    let vm = placed(RestartWhen::Never, OnNodeLoss::Restart);
    assert!(vm.may_move());
    let bound = |change: fn(&mut Vm)| {
        let mut vm = vm.clone();
        change(&mut vm);
        vm
    };
    for vm in [
        bound(|vm| vm.ask.units.whole = true),
        bound(|vm| vm.ask.units.each = vec![crate::config::vm::UnitWish::Any]),
        bound(|vm| vm.only = vm.node()),
        bound(|vm| vm.ask.on_node_loss = OnNodeLoss::Wait),
        bound(|vm| vm.wish = VmWish::Stop),
    ] {
        assert!(!vm.may_move(), "{vm:?}");
    }
}

#[test]
fn a_record_is_stored_as_it_is_and_words_are_bounded() {
    let mut vm = placed(RestartWhen::Never, OnNodeLoss::Wait);
    let failure = VmFailure { kind: VmFailureKind::Crashed, detail: "é".repeat(2000), log: vec!["x".into(); 99] };
    vm.tell(VmReport { failure: Some(failure), ..report(VmState::Failed, 3) }, at(1));
    let kept = vm.seen.as_ref().and_then(|seen| seen.failure.as_ref()).expect("it failed");
    assert_eq!((kept.detail.len(), kept.log.len()), (MAX_FAILURE_TEXT, MAX_FAILURE_LINES));
    let stored = serde_json::to_string(&vm).expect("plain");
    assert_eq!(serde_json::from_str::<Vm>(&stored).expect("its own text"), vm);
}
