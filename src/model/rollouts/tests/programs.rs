//! Programs of the site, pins to a generation, and the time in which nodes begin.

use super::rack::{Boot, Rack, generation, node_id, policy, profile};
use crate::{
    fleet::Phase,
    operations::NodeOrder,
    rollouts::{
        Amount, GateVerdict, Inventory as _, NodeSettings, NodeStage, ProgramOutcome, ProgramPoint,
        RolloutPolicy, RolloutState, RolloutTarget, remaining_time,
    },
};
use meshd_types::Timestamp;
use std::time::Duration;

/// A policy with programs at all points.
fn programs() -> RolloutPolicy {
    let name = |name: &str| Some(name.parse().unwrap());
    RolloutPolicy {
        before_leave: name("leave"),
        gate: name("gate"),
        after_return: name("back"),
        node_timeout_s: 1200,
        ..policy(Amount::Count(1), None)
    }
}

fn points(rack: &Rack, number: u32) -> Vec<(ProgramPoint, Phase)> {
    let own = rack.runs.iter().filter(|(id, ..)| *id == node_id(number));
    own.map(|(_, point, phase)| (*point, *phase)).collect()
}

#[test]
fn programs_run_before_a_node_leaves_and_when_it_is_back() {
    let mut rack = Rack::new(2, programs());
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Done);
    for number in [0, 1] {
        let expected = [ProgramPoint::BeforeLeave, ProgramPoint::Gate, ProgramPoint::AfterReturn]
            .map(|point| (point, Phase::Online));
        assert_eq!(points(&rack, number), expected);
        assert_eq!(rack.records[&node_id(number)].gate, Some(GateVerdict::Passed));
    }
}

#[test]
fn lost_result_of_a_program_runs_it_again() {
    let mut rack = Rack::new(1, programs());
    let mut lost = 0;
    while !rack.rollout.state.is_final() {
        rack.tick(|| {
            lost += 1;
            lost % 2 == 1
        });
    }
    assert_eq!(rack.rollout.state, RolloutState::Done);
    assert!(points(&rack, 0).len() > 3);
}

#[test]
fn node_whose_program_fails_before_it_leaves_never_leaves() {
    let mut rack = Rack::new(3, programs());
    rack.outcomes = vec![ProgramOutcome::Failed("no end within 60 s".to_owned())];
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Failed);
    assert_eq!(
        rack.rollout.reason.as_deref().unwrap(),
        format!("{}: before-leave program leave: no end within 60 s", node_id(0))
    );
    assert!(rack.machine(0).orders.is_empty());
    assert_eq!((rack.stage(0), rack.count(NodeStage::Waiting)), (NodeStage::Failed, 2));
}

#[test]
fn node_that_the_gate_refuses_returns_and_is_announced_as_back() {
    let mut rack = Rack::new(3, programs());
    rack.outcomes = vec![ProgramOutcome::Passed, ProgramOutcome::Failed("slow jobs".to_owned())];
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Returned);
    assert_eq!(rack.records[&node_id(0)].gate, Some(GateVerdict::Failed));
    assert!(rack.rollout.reason.as_ref().unwrap().contains("gate program gate: slow jobs"));
    let ran: Vec<_> = points(&rack, 0).into_iter().map(|(point, _)| point).collect();
    assert_eq!(ran, [ProgramPoint::BeforeLeave, ProgramPoint::Gate, ProgramPoint::AfterReturn]);
    let old = Some(generation(&profile("old")));
    assert_eq!(rack.machine(0).settings.booted, old);
    let mut kept = Rack::new(3, RolloutPolicy { keep_failed: true, ..programs() });
    kept.outcomes = vec![ProgramOutcome::Passed, ProgramOutcome::Mixed("1 of 2".to_owned())];
    kept.run();
    assert_eq!(kept.stage(0), NodeStage::Failed);
    assert_eq!(kept.records[&node_id(0)].gate, Some(GateVerdict::Mixed));
    assert_eq!(kept.machine(0).settings.booted, Some(generation(&profile("new"))));
}

#[test]
fn gate_that_is_not_ready_is_asked_again_after_a_soak_until_the_node_timeout() {
    let not_yet = || ProgramOutcome::NotYet("2 of 3 jobs ran".to_owned());
    let mut rack = Rack::new(1, programs());
    rack.outcomes = vec![ProgramOutcome::Passed, not_yet(), not_yet()];
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Done);
    assert_eq!(rack.records[&node_id(0)].reason, None, "what the gate said is over");
    let gates = |rack: &Rack| {
        let all = points(rack, 0).into_iter();
        all.filter(|(point, _)| *point == ProgramPoint::Gate).count()
    };
    assert_eq!(gates(&rack), 3);
    let mut never = Rack::new(1, programs());
    never.outcomes = vec![ProgramOutcome::Passed];
    never.outcomes.extend((0..1000).map(|_| not_yet()));
    never.run_until(|rack| rack.stage(0).is_failure());
    let reason = never.records[&node_id(0)].reason.clone().unwrap();
    assert!(reason.contains("not healthy within 20 minutes"), "{reason}");
    assert!(reason.ends_with("gate program gate: 2 of 3 jobs ran"), "{reason}");
}

/// Three nodes, of which two must serve. The first one has begun, and another one has failed since.
fn floor_forbids_its_drain() -> Rack {
    let floors = vec!["2".parse().unwrap()];
    let mut rack = Rack::new(3, RolloutPolicy { floors, ..programs() });
    rack.machine(0).is_queued = true;
    rack.run_until(|rack| rack.stage(0) == NodeStage::Draining);
    rack.machine(1).phase = Phase::Offline;
    rack.machine(1).is_linked = false;
    rack.machine(0).is_queued = false;
    (0..5).for_each(|_| rack.tick(|| false));
    rack
}

#[test]
fn node_whose_program_ran_before_it_leaves_keeps_the_floor() {
    let mut rack = floor_forbids_its_drain();
    assert_eq!(rack.machine(0).orders, [], "another node has failed since it began");
    assert!(
        rack.waits.as_ref().unwrap().contains("2 of 3 nodes serve, 2 must"),
        "{:?}",
        rack.waits
    );
    rack.machine(1).phase = Phase::Online;
    rack.machine(1).is_linked = true;
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Done)), (RolloutState::Done, 3));
}

#[test]
fn node_that_waits_for_a_floor_keeps_the_maintenance_of_an_operator() {
    let mut rack = floor_forbids_its_drain();
    assert_eq!(rack.machine(0).orders, [], "the floor keeps it in service");
    rack.machine(0).phase = Phase::Maintenance;
    rack.run_until(|rack| rack.stage(0).is_final());
    assert_eq!(rack.stage(0), NodeStage::Done);
    assert_eq!(rack.machine(0).phase, Phase::Maintenance);
    assert!(!rack.machine(0).orders.contains(&NodeOrder::Resume));
}

#[test]
fn wait_of_a_gate_for_its_turn_is_no_time_of_the_node() {
    let mut rack = Rack::new(1, programs());
    rack.run_until(|rack| rack.stage(0) == NodeStage::Soaking);
    rack.machine(0).is_queued = true;
    let begun = rack.rollout.clock();
    let waited = |rack: &Rack| rack.rollout.clock() > begun + Duration::from_secs(2000);
    rack.run_until(|rack| rack.records[&node_id(0)].stopped_ms.is_some());
    let records = rack.records.clone();
    rack.run_until(waited);
    assert_eq!(rack.records, records, "nothing is stored while it waits");
    // The time goes on where it stopped, and is over at last.
    let mut late =
        Rack { outcomes: vec![ProgramOutcome::NotYet("2 of 3".to_owned()); 1000], ..rack };
    late.machine(0).is_queued = false;
    let resumed = late.rollout.clock();
    late.run_until(|rack| rack.stage(0).is_failure());
    let time = (late.rollout.clock() - resumed).as_secs();
    assert!((1000..1200).contains(&time), "it had 1200 s before, minus its boot: {time}");

    let mut rack = Rack::new(1, programs());
    rack.run_until(|rack| rack.stage(0) == NodeStage::Soaking);
    rack.machine(0).is_queued = true;
    rack.run_until(waited);
    rack.machine(0).is_queued = false;
    rack.run();
    assert_eq!((rack.rollout.state, rack.stage(0)), (RolloutState::Done, NodeStage::Done));
}

#[test]
fn node_that_an_abort_returns_is_announced_as_back() {
    let mut rack = Rack::new(1, programs());
    rack.machine(0).work = 1000;
    rack.run_until(|rack| rack.machines[&node_id(0)].phase == Phase::Draining);
    rack.rollout.state = RolloutState::Aborting;
    rack.run();
    assert_eq!((rack.rollout.state, rack.stage(0)), (RolloutState::Aborted, NodeStage::Waiting));
    let ran = points(&rack, 0);
    assert_eq!(
        ran,
        [(ProgramPoint::BeforeLeave, Phase::Online), (ProgramPoint::AfterReturn, Phase::Online)]
    );
}

#[test]
fn rollout_to_a_generation_pins_nodes_and_a_failed_node_is_unpinned() {
    let target = || RolloutTarget::Generation { generation: "0".to_owned() };
    let mut rack = Rack::with_target(3, policy(Amount::Count(1), None), target());
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Done);
    let new = Some(generation(&profile("new")));
    for machine in rack.machines.values() {
        assert_eq!((machine.settings.pinned, machine.settings.booted), (new, new));
        let reboots = machine.orders.iter().filter(|order| **order == NodeOrder::Reboot);
        assert_eq!(reboots.count(), 1);
    }
    let mut bad = Rack::with_target(3, policy(Amount::Count(1), None), target());
    bad.machine(0).on_new = Boot::Degraded;
    bad.run();
    assert_eq!(bad.stage(0), NodeStage::Returned);
    let old = Some(generation(&profile("old")));
    let settings = &bad.machine(0).settings;
    assert_eq!((settings.pinned, settings.booted), (None, old));
    assert_eq!(bad.count(NodeStage::Waiting), 2);
}

/// The pin of a rollout is removed also if it names what the node ran, and a node whose profile has
/// changed meanwhile is pinned to that at last.
#[test]
fn pin_to_what_a_node_ran_is_removed_on_its_return() {
    let new = generation(&profile("new"));
    let mut rack = Rack::with_target(1, programs(), RolloutTarget::Previous);
    rack.machine(0).settings.profile = profile("new");
    rack.machine(0).settings.booted = Some(new);
    let record = rack.records.get_mut(&node_id(0)).unwrap();
    record.previous = Some(rack.machines[&node_id(0)].settings.clone());
    rack.machine(0).settings.pinned = Some(new);
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Done);
    let settings = &rack.machine(0).settings;
    assert_eq!((settings.pinned, settings.booted), (None, Some(new)));
    // Without the pin it would boot another generation: it is pinned to what it ran.
    let mut moved = Rack::with_target(1, programs(), RolloutTarget::Previous);
    let record = moved.records.get_mut(&node_id(0)).unwrap();
    record.previous =
        Some(NodeSettings { profile: profile("old"), pinned: None, booted: Some(new) });
    moved.machine(0).settings.pinned = Some(new);
    moved.machine(0).settings.booted = Some(new);
    moved.run();
    let settings = &moved.machine(0).settings;
    assert_eq!((settings.pinned, settings.booted), (Some(new), Some(new)));
    let unpins = moved.machine(0).orders.iter().filter(|order| **order == NodeOrder::Unpin);
    assert_eq!(unpins.count(), 1);
}

#[test]
fn gate_that_does_not_run_fails_the_node_and_says_nothing_of_it() {
    let mut rack = Rack::new(1, programs());
    rack.outcomes = vec![ProgramOutcome::Passed, ProgramOutcome::Unable("no file".to_owned())];
    rack.run();
    assert_eq!(rack.records[&node_id(0)].gate, Some(GateVerdict::Unable));
    assert_eq!(rack.stage(0), NodeStage::Returned);
}

#[test]
fn node_that_fails_after_a_plain_reboot_is_announced_as_back() {
    let mut rack = Rack::with_target(1, programs(), RolloutTarget::Reboot);
    rack.outcomes = vec![ProgramOutcome::Passed, ProgramOutcome::Failed("slow".to_owned())];
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Failed);
    let reason = rack.records[&node_id(0)].reason.clone().unwrap();
    assert_eq!(reason, "gate program gate: slow");
    let ran: Vec<_> = points(&rack, 0).into_iter().map(|(point, _)| point).collect();
    assert_eq!(ran, [ProgramPoint::BeforeLeave, ProgramPoint::Gate, ProgramPoint::AfterReturn]);
    let reboots = rack.machine(0).orders.iter().filter(|order| **order == NodeOrder::Reboot);
    assert_eq!(reboots.count(), 1);
}

#[test]
fn node_timeout_does_not_hit_a_node_that_is_announced_as_back() {
    let mut rack = Rack::new(1, programs());
    let is_announced =
        |rack: &Rack| points(rack, 0).iter().any(|(point, _)| *point == ProgramPoint::AfterReturn);
    rack.run_until(is_announced);
    rack.machine(0).ended = None;
    rack.rollout.clock_ms += 1_300_000;
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Done);
}

#[test]
fn node_that_another_order_takes_out_again_is_announced_as_back() {
    let mut rack = Rack::new(1, programs());
    rack.run_until(|rack| rack.stage(0) == NodeStage::Soaking);
    rack.machine(0).phase = Phase::Draining;
    rack.run();
    let last = points(&rack, 0).last().map(|(point, _)| *point);
    assert_eq!(last, Some(ProgramPoint::AfterReturn));
}

#[test]
fn node_that_is_offline_returns_without_a_link_into_the_service_that_it_had() {
    let mut rack = Rack::with_target(1, programs(), RolloutTarget::Previous);
    let before = rack.machine(0).settings.clone();
    let new = generation(&profile("new"));
    let now = rack.now;
    rack.machine(0).settings.pinned = Some(new);
    rack.machine(0).phase = Phase::Offline;
    rack.machine(0).is_linked = false;
    let boot = rack.machines.node(node_id(0)).unwrap().boot;
    let record = rack.records.get_mut(&node_id(0)).unwrap();
    record.drained = true;
    record.begin_return(before.clone(), boot, "it is offline after a probe", now);
    rack.rollout.policy.max_failures = 1;
    rack.run_until(|rack| rack.machines[&node_id(0)].settings.pinned.is_none());
    // An operator repairs it.
    (rack.machine(0).phase, rack.machine(0).is_linked) = (Phase::Maintenance, true);
    rack.run();
    assert_eq!((rack.rollout.state, rack.stage(0)), (RolloutState::Done, NodeStage::Returned));
    assert_eq!((rack.machine(0).phase, rack.machine(0).settings.clone()), (Phase::Online, before));
}

#[test]
fn no_node_begins_before_its_start_and_outside_of_its_window() {
    let at = |hours: i64| Timestamp::from_millis(hours * 3_600_000);
    let limits = RolloutPolicy {
        start_at: Some(at(24)),
        window: Some("02:00-04:00".parse().unwrap()),
        ..policy(Amount::Count(1), None)
    };
    let mut rack = Rack::new(2, limits);
    for (hour, why) in [(3, "it starts at"), (25, "its window is 02:00-04:00 UTC")] {
        rack.now = at(hour);
        rack.tick(|| false);
        assert!(rack.waits.as_ref().unwrap().starts_with(why), "{:?}", rack.waits);
        assert_eq!(rack.count(NodeStage::Waiting), 2);
    }
    rack.now = at(26);
    rack.run_until(|rack| rack.stage(0) == NodeStage::Rebooting);
    rack.now = at(29);
    rack.run_until(|rack| rack.stage(0) == NodeStage::Done);
    rack.tick(|| false);
    assert_eq!(
        rack.stage(1),
        NodeStage::Waiting,
        "a node in progress is finished, no other begins"
    );
    // A clock that is set back closes the window: it moves no node.
    rack.now = at(1);
    rack.tick(|| false);
    assert_eq!(rack.stage(1), NodeStage::Waiting);
    rack.now = at(51);
    rack.run();
    assert_eq!(rack.rollout.state, RolloutState::Done);
}

#[test]
fn remaining_time_follows_from_finished_nodes_and_the_floor() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let mut rack = Rack::new(13, policy(Amount::Count(4), Some(Amount::Count(11))));
    let estimate = |rack: &Rack, earlier: Vec<Duration>, now: Timestamp| {
        remaining_time(&rack.rollout, &rack.records, earlier, now)
    };
    let now = Timestamp::EPOCH.after(minutes(100));
    assert_eq!(estimate(&rack, Vec::new(), now), None, "nothing is known");
    // One canary, then three waves of four nodes, of which two leave at once.
    assert_eq!(estimate(&rack, vec![minutes(5)], now), Some(minutes(35)));
    let mut numbers = 0..;
    for record in rack.records.values_mut() {
        match numbers.next().unwrap() {
            0 => {
                (record.stage, record.began_at) = (NodeStage::Done, Some(now.before(minutes(20))));
                record.finished_at = Some(now.before(minutes(10)));
            }
            1 => {
                (record.stage, record.began_at) = (NodeStage::Soaking, Some(now.before(minutes(7))))
            }
            _ => record.wave = 2,
        }
    }
    // Eleven nodes in six rounds of ten minutes, and three minutes of the node in progress.
    assert_eq!(estimate(&rack, vec![minutes(5)], now), Some(minutes(63)));
    rack.rollout.state = RolloutState::Aborting;
    assert_eq!(estimate(&rack, Vec::new(), now), Some(minutes(3)), "only nodes in progress");
}
