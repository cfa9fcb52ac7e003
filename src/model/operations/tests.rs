//! The states of an operation: no order starts twice, and a final state never changes.

use super::*;
use crate::fleet::{LONGEST_BOOT, Node, Phase};
use meshd_types::BootSessionId;
use proptest::prelude::*;
use std::time::Duration;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn record(node: &Node) -> NodeOperation {
    NodeOperation::pending(OperationId([1; 4]), node.id, node.name.clone())
}

#[derive(Clone, Debug)]
enum Step {
    Start,
    Confirm,
    Finish(NodeOutcome),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let reason = || "why".to_owned();
    let step = prop_oneof![
        Just(Step::Start),
        Just(Step::Confirm),
        Just(Step::Finish(NodeOutcome::Done)),
        Just(Step::Finish(NodeOutcome::Failed(reason()))),
        Just(Step::Finish(NodeOutcome::Cancelled(reason()))),
    ];
    proptest::collection::vec(step, 0..12)
}

proptest! {
    #[test]
    fn record_starts_at_most_once_and_a_final_state_never_changes(steps in steps()) {
        let mut record = record(&Node::fixture(1));
        let mut starts = 0;
        let mut counts = StateCounts::default();
        counts.add(record.state);
        for (number, step) in (1..).zip(steps) {
            let before = record.clone();
            let changed = match step {
                Step::Start => record.start(at(number)),
                Step::Confirm => record.confirm(at(number)),
                Step::Finish(outcome) => record.finish(outcome, at(number)),
            };
            prop_assert_eq!(changed, before != record);
            starts += usize::from(changed && before.state == NodeOperationState::Pending && record.state == NodeOperationState::Running);
            prop_assert!(before.state.is_open() || before == record, "{:?} became {:?}", before, record);
            prop_assert_eq!(record.state.is_open(), record.finished_at.is_none());
            prop_assert!(record.confirmed_at.is_none_or(|confirmed| record.started_at.is_some_and(|started| started < confirmed)));
            counts.subtract(before.state);
            counts.add(record.state);
            prop_assert_eq!((counts.total(), counts.open()), (1, u32::from(record.state.is_open())));
        }
        prop_assert!(starts <= 1);
        let stored = serde_json::to_string(&record).unwrap();
        prop_assert_eq!(serde_json::from_str::<NodeOperation>(&stored).unwrap(), record);
    }
}

#[test]
fn drain_ends_with_maintenance_or_with_another_order() {
    let drain = NodeOrder::Drain { workloads: DrainPolicy::Wait, grace_s: None };
    let mut node = Node::fixture(1);
    let mut record = record(&node);
    let observe =
        |record: &NodeOperation, node: Option<&Node>| record.observe(&drain, node, None, at(9));
    node.phase = Phase::Maintenance;
    assert_eq!(observe(&record, Some(&node)), None, "it has not started");
    assert!(record.start(at(1)));
    assert_eq!(observe(&record, Some(&node)), Some(NodeOutcome::Done));
    node.phase = Phase::Draining;
    assert_eq!(observe(&record, Some(&node)), None);
    (node.phase, node.drains) = (Phase::Offline, true);
    assert_eq!(observe(&record, Some(&node)), None, "it drains when it returns");
    (node.phase, node.drains) = (Phase::Online, false);
    assert!(matches!(observe(&record, Some(&node)), Some(NodeOutcome::Cancelled(_))));
    node.phase = Phase::Removed;
    assert!(matches!(observe(&record, Some(&node)), Some(NodeOutcome::Cancelled(_))));
    assert!(matches!(observe(&record, None), Some(NodeOutcome::Cancelled(_))));
}

#[test]
fn reboot_ends_with_the_next_boot_or_after_the_longest_boot() {
    let [ended, next] = [1, 2].map(|number| BootSessionId([number; 12]));
    let mut node = Node::fixture(1);
    node.phase = Phase::Offline;
    let mut record = record(&node);
    node.boot = Some(ended);
    record.start_reboot(7, &node, Some(ended), at(1));
    let observe = |record: &NodeOperation, newest, now| {
        record.observe(&NodeOrder::Reboot, Some(&node), newest, now)
    };
    let late = at(1).after(LONGEST_BOOT + Duration::from_secs(1));
    assert_eq!(
        observe(&record, Some(ended), late),
        None,
        "whether the agent received it is decided elsewhere"
    );
    assert!(record.confirm(at(1)));
    assert_eq!(observe(&record, Some(ended), at(2)), None, "the machine may take minutes");
    assert_eq!(observe(&record, Some(next), at(2)), Some(NodeOutcome::Done));
    assert!(matches!(observe(&record, Some(ended), late), Some(NodeOutcome::Failed(_))));
}

/// The session of a ticket is not on record, so that it is never the newest boot.
#[test]
fn reboot_of_a_node_with_a_ticket_ends_with_its_next_kernel_or_session() {
    let [ticket, installed, next] = [1, 2, 3].map(|number| BootSessionId([number; 12]));
    for earlier in [None, Some(installed)] {
        let mut node = Node::fixture(1);
        (node.phase, node.boot) = (Phase::Online, Some(ticket));
        node.facts = Some(meshd_proto::Facts::default());
        let kernel = |node: &mut Node, id: &str| {
            node.facts.as_mut().expect("facts").system.kernel_boot_id = id.to_owned();
        };
        kernel(&mut node, "a");
        let mut record = record(&node);
        record.start_reboot(7, &node, earlier, at(1));
        assert!(record.confirm(at(1)));
        let observe =
            |node: &Node, newest| record.observe(&NodeOrder::Reboot, Some(node), newest, at(2));
        assert_eq!(observe(&node, earlier), None, "it has not rebooted: {earlier:?}");
        assert_eq!(observe(&node, Some(next)), Some(NodeOutcome::Done), "it boots by network");
        kernel(&mut node, "");
        assert_eq!(observe(&node, earlier), None, "its kernel is not known");
        kernel(&mut node, "b");
        assert_eq!(observe(&node, earlier), Some(NodeOutcome::Done), "it booted from its disk");
    }
}

#[test]
fn state_of_an_operation_follows_from_its_nodes() {
    use NodeOperationState::{Cancelled, Done, Failed, Pending, Running};
    let cases = [
        (vec![], OperationState::Done),
        (vec![Done, Done], OperationState::Done),
        (vec![Done, Pending], OperationState::Running),
        (vec![Failed, Running], OperationState::Running),
        (vec![Failed, Cancelled, Done], OperationState::Failed),
        (vec![Cancelled, Done], OperationState::Cancelled),
    ];
    for (states, expected) in cases {
        let mut counts = StateCounts::default();
        states.iter().for_each(|state| counts.add(*state));
        assert_eq!(counts.state(), expected, "{states:?}");
    }
    assert!(
        NodeOperationState::ALL.iter().enumerate().all(|(index, state)| *state as usize == index)
    );
}

#[test]
fn only_an_order_of_the_same_kind_replaces_a_running_one() {
    let drain = |workloads| NodeOrder::Drain { workloads, grace_s: None };
    assert!(NodeOrder::Reboot.replaces(&NodeOrder::Reboot));
    assert!(drain(DrainPolicy::Stop).replaces(&drain(DrainPolicy::Wait)));
    assert!(!NodeOrder::Reboot.replaces(&drain(DrainPolicy::Wait)));
    assert!(!NodeOrder::Resume.replaces(&NodeOrder::Reboot));
    assert!(NodeOrder::Remove.withdraws_pending() && !NodeOrder::Reboot.withdraws_pending());
}
