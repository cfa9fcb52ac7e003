//! Single cases: what happens to which node, and when.

use super::rack::{Boot, Rack, generation, node_id, policy, profile};
use crate::{
    fleet::Phase,
    operations::NodeOrder,
    rollouts::{
        Amount, Floor, NodeStage, PlannedNode, RolloutPolicy, RolloutState, RolloutTarget,
        WorkPolicy, check_floors, waves,
    },
};

#[test]
fn good_profile_reaches_all_nodes_in_waves_after_the_canary() {
    let mut rack = Rack::new(6, policy(Amount::Count(2), Some(Amount::Count(4))));
    rack.run_until(|rack| rack.count(NodeStage::Rebooting) > 0);
    assert_eq!(rack.count(NodeStage::Waiting), 5, "the canary is alone");
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Done)), (RolloutState::Done, 6));
    assert_eq!(rack.rollout.waves, 4);
    for machine in rack.machines.values() {
        assert_eq!(machine.settings.booted, Some(generation(&profile("new"))));
        assert!(machine.serves());
        let reboots = machine.orders.iter().filter(|order| **order == NodeOrder::Reboot).count();
        assert_eq!(reboots, 1, "each node reboots once");
    }
}

#[test]
fn bad_canary_returns_and_the_other_nodes_never_leave() {
    for boot in [Boot::Degraded, Boot::Loop] {
        let mut rack = Rack::new(6, policy(Amount::Count(2), Some(Amount::Count(4))));
        rack.machines.values_mut().for_each(|machine| machine.on_new = boot);
        rack.run();
        assert_eq!(rack.rollout.state, RolloutState::Failed, "{boot:?}");
        assert_eq!(rack.count(NodeStage::Returned), 1, "{boot:?}: {:?}", rack.records);
        assert_eq!(rack.count(NodeStage::Waiting), 5);
        for machine in rack.machines.values() {
            assert!(machine.serves());
            assert_eq!(machine.settings.booted, Some(generation(&profile("old"))));
            assert_eq!(machine.settings.profile, profile("old"));
        }
        let touched = rack.machines.values().filter(|machine| !machine.orders.is_empty()).count();
        assert_eq!(touched, 1);
    }
}

#[test]
fn node_that_stays_silent_fails_at_its_timeout_with_its_old_settings() {
    let mut rack = Rack::new(3, policy(Amount::Count(1), None));
    rack.machines.values_mut().for_each(|machine| machine.on_new = Boot::Silent);
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Failed);
    assert_eq!((rack.count(NodeStage::Failed), rack.count(NodeStage::Waiting)), (1, 2));
    let failed = rack.records.values().find(|record| record.stage == NodeStage::Failed).unwrap();
    assert!(failed.reason.as_ref().unwrap().contains("without a link"), "{failed:?}");
    let machine = &rack.machines[&failed.node];
    assert_eq!(machine.settings.profile, profile("old"), "its next boot is the old one");
    let minutes = rack.rollout.clock_ms / 60_000;
    assert!((90..100).contains(&minutes), "once for the change, once for the return: {minutes}");
}

#[test]
fn failure_budget_permits_failures_and_counts_them() {
    let mut rack = Rack::new(
        20,
        RolloutPolicy {
            max_failures: 1,
            run_timeout_s: Some(86_400),
            ..policy(Amount::Count(2), None)
        },
    );
    rack.machine(7).on_new = Boot::Degraded;
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Done);
    assert_eq!((rack.count(NodeStage::Done), rack.count(NodeStage::Returned)), (19, 1));
}

#[test]
fn floor_waits_for_nodes_that_fail_for_another_reason() {
    let mut rack = Rack::new(6, policy(Amount::Count(6), Some(Amount::Count(4))));
    rack.machine(5).phase = Phase::Maintenance;
    rack.machine(4).phase = Phase::Offline;
    rack.machine(4).is_linked = false;
    rack.plan();
    assert!(check_floors(&rack.rollout.policy.floors, &all(&rack), &rack.machines).is_err());
    for _ in 0..30 {
        rack.tick(|| false);
    }
    let untouched = (0..4).filter(|number| rack.stage(*number) == NodeStage::Waiting).count();
    assert_eq!(untouched, 4, "four serve, four must");
    assert!(rack.waits.as_ref().unwrap().contains("floor"), "{:?}", rack.waits);
    rack.machine(4).phase = Phase::Online;
    rack.machine(4).is_linked = true;
    rack.run_until(|rack| (0..4).any(|number| rack.stage(number) != NodeStage::Waiting));
}

fn all(rack: &Rack) -> Vec<meshd_types::NodeId> {
    rack.machines.keys().copied().collect()
}

#[test]
fn rollout_that_breaks_a_floor_with_its_first_node_is_refused() {
    let rack = Rack::new(6, policy(Amount::Count(1), Some(Amount::Count(6))));
    let fault = check_floors(&rack.rollout.policy.floors, &all(&rack), &rack.machines).unwrap_err();
    assert_eq!((fault.members, fault.serving, fault.required), (6, 6, 6));
    let five = [Floor { group: None, serving: Amount::Count(5) }];
    assert!(check_floors(&five, &all(&rack), &rack.machines).is_ok());
}

#[test]
fn one_failure_domain_is_in_progress_at_a_time() {
    let label = Some("rack".parse().unwrap());
    let mut rack =
        Rack::new(12, RolloutPolicy { domain: label, ..policy(Amount::Count(12), None) });
    for number in 0..12 {
        let value = ["a", "b", "c"][number as usize % 3];
        rack.machine(number).domain = Some(value.parse().unwrap());
    }
    rack.plan();
    // Relabelled after the plan: the present label counts.
    rack.machine(3).domain = Some("b".parse().unwrap());
    while !rack.rollout.state.is_final() {
        rack.tick(|| false);
        let active = rack.records.values().filter(|record| record.stage.is_active());
        let mut domains: Vec<_> =
            active.map(|record| rack.machines[&record.node].domain.clone()).collect();
        domains.dedup();
        assert!(domains.len() <= 1, "{domains:?}");
    }
    assert_eq!(rack.count(NodeStage::Done), 12);
}

#[test]
fn unhealthy_nodes_come_first_and_canaries_are_healthy() {
    let node = |number: u32, serves| PlannedNode {
        id: node_id(number),
        name: format!("n{number}"),
        serves,
        domain: None,
    };
    let nodes = vec![node(1, true), node(2, true), node(3, false), node(4, true), node(5, false)];
    let policy = RolloutPolicy { wave: Amount::Count(2), ..RolloutPolicy::default() };
    let waves = waves(&policy, nodes);
    let names: Vec<Vec<&str>> =
        waves.iter().map(|wave| wave.iter().map(|node| node.name.as_str()).collect()).collect();
    assert_eq!(names, [vec!["n1"], vec!["n3", "n5"], vec!["n2", "n4"]]);
}

#[test]
fn work_is_drained_waited_for_or_left_out() {
    for (workloads, expected) in [
        (WorkPolicy::Drain, NodeStage::Done),
        (WorkPolicy::Wait, NodeStage::Done),
        (WorkPolicy::Skip, NodeStage::Skipped),
    ] {
        let mut rack = Rack::new(1, RolloutPolicy { workloads, ..policy(Amount::Count(1), None) });
        rack.machine(0).work = 20;
        rack.tick(|| false);
        let drains = rack.machine(0).phase == Phase::Draining;
        assert_eq!(drains, workloads == WorkPolicy::Drain);
        rack.run();
        assert_eq!(rack.stage(0), expected, "{workloads:?}");
    }
}

#[test]
fn abort_returns_draining_nodes_and_finishes_rebooting_ones() {
    let mut rack = Rack::new(3, policy(Amount::Count(3), None));
    rack.rollout.policy.canaries = 0;
    rack.plan();
    rack.machine(0).work = 1000;
    rack.run_until(|rack| rack.count(NodeStage::Rebooting) == 2);
    rack.rollout.state = RolloutState::Aborting;
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Aborted);
    assert_eq!((rack.stage(0), rack.count(NodeStage::Done)), (NodeStage::Waiting, 2));
    assert!(rack.machine(0).serves());
}

#[test]
fn pause_begins_no_node_and_finishes_those_in_progress() {
    let mut rack = Rack::new(4, policy(Amount::Count(1), None));
    rack.tick(|| false);
    rack.rollout.state = RolloutState::Paused;
    for _ in 0..50 {
        rack.tick(|| false);
    }
    assert_eq!((rack.count(NodeStage::Done), rack.count(NodeStage::Waiting)), (1, 3));
    rack.rollout.state = RolloutState::Running;
    rack.run();
    assert_eq!(rack.count(NodeStage::Done), 4);
}

#[test]
fn order_of_an_operator_wins_over_the_rollout() {
    let mut rack = Rack::new(2, policy(Amount::Count(1), None));
    rack.run_until(|rack| rack.count(NodeStage::Rebooting) == 1);
    rack.tick(|| false);
    let first = rack.records.values().find(|record| record.stage.is_active()).unwrap().node;
    rack.machines.get_mut(&first).unwrap().settings.profile = profile("other");
    rack.run();
    let record = &rack.records[&first];
    assert_eq!(record.stage, NodeStage::Failed);
    assert!(record.reason.as_ref().unwrap().contains("another order"), "{record:?}");
    assert_eq!(rack.machines[&first].settings.profile, profile("other"));
}

#[test]
fn nodes_that_run_it_already_and_those_without_service_are_not_touched() {
    let mut rack = Rack::new(4, policy(Amount::Count(1), None));
    let new = profile("new");
    rack.machine(0).settings.profile = new.clone();
    rack.machine(0).settings.booted = Some(generation(&new));
    rack.machine(1).phase = Phase::Quarantined;
    rack.machine(2).is_removed = true;
    rack.run();
    let stages = [NodeStage::Done, NodeStage::Skipped, NodeStage::Skipped, NodeStage::Done];
    assert_eq!([0, 1, 2, 3].map(|number| rack.stage(number)), stages);
    for number in 0..3 {
        assert_eq!(rack.machine(number).orders, [], "{number}");
    }
}

#[test]
fn maintenance_of_an_operator_stays() {
    let mut rack = Rack::new(1, policy(Amount::Count(1), None));
    rack.machine(0).phase = Phase::Maintenance;
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Done);
    assert_eq!(rack.machine(0).phase, Phase::Maintenance);
}

#[test]
fn pinned_node_is_unpinned_by_a_profile_and_stays_pinned_by_a_reboot() {
    let old = generation(&profile("old"));
    for (target, pinned) in [
        (RolloutTarget::Profile { profile: profile("new") }, None),
        (RolloutTarget::Reboot, Some(old)),
    ] {
        let mut rack = Rack::with_target(1, policy(Amount::Count(1), None), target);
        rack.machine(0).settings.pinned = Some(old);
        rack.run();
        assert_eq!((rack.stage(0), rack.machine(0).settings.pinned), (NodeStage::Done, pinned));
    }
}

#[test]
fn undo_returns_each_node_to_its_profile_and_generation() {
    let mut rack = Rack::new(5, policy(Amount::Count(2), None));
    rack.run();
    let done = rack.records.clone();
    rack.rollout.state = RolloutState::Running;
    rack.rollout.target = RolloutTarget::Previous;
    rack.plan();
    for record in rack.records.values_mut() {
        record.previous = done[&record.node].before.clone();
    }
    rack.run();
    assert_eq!(rack.count(NodeStage::Done), 5);
    for machine in rack.machines.values() {
        assert_eq!(machine.settings.booted, Some(generation(&profile("old"))));
    }
}

#[test]
fn run_that_takes_too_long_ends_and_returns_what_drains() {
    let mut rack = Rack::new(3, policy(Amount::Count(1), None));
    rack.machines.values_mut().for_each(|machine| machine.work = 100_000);
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Failed);
    assert!(rack.rollout.reason.as_ref().unwrap().contains("not finished"));
    assert!(rack.machines.values().all(super::rack::Machine::serves));
    assert_eq!(rack.count(NodeStage::Waiting), 3);
}

#[test]
fn frozen_rollout_orders_nothing() {
    let mut rack = Rack::new(2, policy(Amount::Count(1), None));
    rack.tick(|| false);
    let before = (rack.records.clone(), rack.machine(0).orders.len());
    (rack.rollout.state, rack.rollout.frozen) = (RolloutState::Paused, true);
    for _ in 0..1000 {
        rack.tick(|| false);
    }
    assert_eq!((rack.records.clone(), rack.machine(0).orders.len()), before);
}
