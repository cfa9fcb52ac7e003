//! Returns of nodes that serve: their gate refused what they run.

use super::rack::{Boot, Rack, generation, node_id, policy, profile};
use crate::{
    fleet::Phase,
    operations::NodeOrder,
    rollouts::{
        Amount, NodeStage, ProgramOutcome, ProgramPoint, RolloutNode, RolloutPolicy, RolloutState,
    },
};

/// Three nodes, of which two must serve, with a gate that refuses the first one. Nobody has failed
/// yet: the gate has not ended.
fn gate_runs() -> Rack {
    let name = |name: &str| Some(name.parse().unwrap());
    let mut rack = Rack::new(
        3,
        RolloutPolicy {
            before_leave: name("leave"),
            gate: name("gate"),
            after_return: name("back"),
            node_timeout_s: 1200,
            ..policy(Amount::Count(1), Some(Amount::Count(2)))
        },
    );
    rack.outcomes = vec![ProgramOutcome::Passed, ProgramOutcome::Failed("slow jobs".to_owned())];
    rack.run_until(|rack| rack.stage(0) == NodeStage::Soaking);
    rack
}

fn set_link(rack: &mut Rack, number: u32, is_linked: bool) {
    let machine = rack.machine(number);
    machine.is_linked = is_linked;
    machine.phase = if is_linked { Phase::Online } else { Phase::Offline };
}

fn count(rack: &mut Rack, number: u32, is_meant: impl Fn(&NodeOrder) -> bool) -> usize {
    rack.machine(number).orders.iter().filter(|order| is_meant(order)).count()
}

fn reboots(rack: &mut Rack) -> usize {
    count(rack, 0, |order| *order == NodeOrder::Reboot)
}

fn drains(rack: &mut Rack) -> usize {
    count(rack, 0, |order| matches!(order, NodeOrder::Drain { .. }))
}

fn record(rack: &Rack) -> &RolloutNode {
    &rack.records[&node_id(0)]
}

#[test]
fn node_that_serves_waits_for_the_floor_and_is_drained_before_it_returns() {
    let mut rack = gate_runs();
    set_link(&mut rack, 1, false);
    rack.run_until(|rack| rack.stage(0) == NodeStage::Returning);
    (0..20).for_each(|_| rack.tick(|| false));
    assert!(rack.machine(0).serves(), "two must serve, and the other one has failed");
    assert_eq!((drains(&mut rack), reboots(&mut rack)), (1, 1));
    assert!(rack.waits.as_ref().unwrap().contains("2 of 3 nodes serve, 2 must"));
    assert_eq!(rack.machine(0).settings.profile, profile("old"), "its next boot is the old one");
    set_link(&mut rack, 1, true);
    rack.run();
    assert_eq!((rack.stage(0), rack.rollout.state), (NodeStage::Returned, RolloutState::Failed));
    assert_eq!((drains(&mut rack), reboots(&mut rack)), (2, 2));
    assert_eq!(rack.machine(0).settings.booted, Some(generation(&profile("old"))));
    assert!(rack.machine(0).serves());
}

#[test]
fn node_that_does_not_serve_returns_at_once() {
    let mut rack = Rack::new(3, policy(Amount::Count(1), Some(Amount::Count(2))));
    rack.machine(0).on_new = Boot::Degraded;
    rack.run_until(|rack| rack.stage(0) == NodeStage::Rebooting);
    set_link(&mut rack, 1, false);
    rack.run();
    assert_eq!((rack.stage(0), reboots(&mut rack)), (NodeStage::Returned, 2));
    assert!(rack.machine(0).serves());
}

#[test]
fn node_whose_floor_stays_broken_ends_in_service_with_its_old_settings() {
    let mut rack = gate_runs();
    set_link(&mut rack, 1, false);
    rack.run();
    assert_eq!((rack.stage(0), reboots(&mut rack)), (NodeStage::Failed, 1));
    let reason = record(&rack).reason.clone().unwrap();
    assert!(reason.contains("slow jobs; it did not return: it is online"), "{reason}");
    assert!(rack.machine(0).serves());
    assert_eq!(rack.machine(0).settings.profile, profile("old"));
    let ran = rack.runs.iter().map(|(_, point, _)| *point);
    let back = ran.filter(|point| *point == ProgramPoint::AfterReturn).count();
    assert_eq!(back, 1, "it is in service, and announced as back");
}

#[test]
fn work_that_a_refused_node_has_taken_ends_before_it_returns() {
    let mut rack = gate_runs();
    rack.machine(0).work = 400;
    rack.run_until(|rack| rack.stage(0).is_final());
    assert_eq!(rack.stage(0), NodeStage::Returned, "{:?}", record(&rack));
    assert_eq!(rack.machine(0).work, 0);
}

#[test]
fn operator_who_ends_the_drain_of_a_return_keeps_the_node() {
    let mut rack = gate_runs();
    rack.machine(0).work = 100_000;
    rack.run_until(|rack| rack.machines[&node_id(0)].phase == Phase::Draining);
    rack.tick(|| false);
    rack.machine(0).phase = Phase::Online;
    rack.run();
    let reason = record(&rack).reason.clone().unwrap();
    assert!(reason.ends_with("slow jobs; another order ended its drain"), "{reason}");
    assert_eq!((rack.stage(0), reboots(&mut rack)), (NodeStage::Failed, 1));
}

#[test]
fn node_that_an_operator_resumes_before_its_reboot_is_not_rebooted() {
    let mut rack = Rack::new(3, policy(Amount::Count(1), Some(Amount::Count(2))));
    rack.run_until(|rack| rack.stage(0) == NodeStage::Rebooting);
    rack.machine(0).phase = Phase::Online;
    set_link(&mut rack, 1, false);
    rack.run();
    assert_eq!((rack.stage(0), reboots(&mut rack)), (NodeStage::Returned, 0));
    assert_eq!(rack.machine(0).settings.profile, profile("old"));
    assert!(rack.machine(0).serves());
}
