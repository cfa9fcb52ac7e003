//! What others do during a rollout: orders that are late, reloads, outages, refusals, operators.

use super::rack::{Boot, Machine, Rack, generation, policy, profile};
use crate::{
    fleet::Phase,
    operations::NodeOrder,
    rollouts::{
        Amount, Floor, Inventory, NodePresent, NodeStage, RolloutPolicy, RolloutState,
        RolloutTarget, StepTime, WorkPolicy, advance, check_floors,
    },
};
use meshd_types::{GroupName, NodeId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

fn without_canaries(wave: u32) -> RolloutPolicy {
    RolloutPolicy { canaries: 0, ..policy(Amount::Count(wave), None) }
}

fn set_links(rack: &mut Rack, stage: NodeStage, is_linked: bool) {
    for record in rack.records.values().filter(|record| record.stage == stage) {
        let machine = rack.machines.get_mut(&record.node).unwrap();
        machine.is_linked = is_linked;
        machine.phase = if is_linked { Phase::Online } else { Phase::Offline };
    }
}

fn reboots(machine: &Machine) -> usize {
    machine.orders.iter().filter(|order| **order == NodeOrder::Reboot).count()
}

#[test]
fn abort_returns_nodes_whose_drain_is_on_its_way() {
    let mut rack = Rack::new(3, without_canaries(3));
    rack.machines.values_mut().for_each(|machine| machine.delay = 5);
    rack.tick(|| false);
    assert_eq!(rack.count(NodeStage::Draining), 3);
    rack.rollout.state = RolloutState::Aborting;
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Waiting)), (RolloutState::Aborted, 3));
    for _ in 0..10 {
        rack.tick(|| false);
    }
    assert!(rack.machines.values().all(Machine::serves), "{:?}", rack.machines);
}

/// A site without groups.
struct NoGroups<'a>(&'a BTreeMap<NodeId, Machine>);

impl Inventory for NoGroups<'_> {
    fn node(&self, id: NodeId) -> Option<NodePresent> {
        self.0.node(id)
    }

    fn exists(&self, id: NodeId) -> bool {
        self.0.exists(id)
    }

    fn serves(&self, id: NodeId) -> bool {
        self.0.serves(id)
    }

    fn group(&self, _: &GroupName) -> Option<Vec<NodeId>> {
        None
    }
}

#[test]
fn floor_of_a_group_that_disappears_forbids_every_node() {
    let group = Some("gpu".parse().unwrap());
    let floors = vec![Floor { group, serving: Amount::Count(2) }];
    let mut rack = Rack::new(6, RolloutPolicy { floors, ..without_canaries(6) });
    let time = StepTime { now: Timestamp::EPOCH, clock: Duration::from_secs(10) };
    let step = advance(&rack.rollout, &rack.records, &NoGroups(&rack.machines), time);
    assert_eq!(step.orders, []);
    let waits = "the floor gpu=2 forbids it: group gpu has no nodes";
    assert_eq!(step.waits.as_deref(), Some(waits));
    let ids: Vec<NodeId> = rack.machines.keys().copied().collect();
    let fault = check_floors(&rack.rollout.policy.floors, &ids, &NoGroups(&rack.machines));
    assert!(fault.is_err());
    rack.run();
    assert_eq!(rack.count(NodeStage::Done), 6, "with its group");
}

#[test]
fn reload_during_a_rollout_fails_no_node_in_progress() {
    let mut rack = Rack::new(4, without_canaries(2));
    rack.run_until(|rack| rack.count(NodeStage::Soaking) == 2);
    let soaking: Vec<NodeId> =
        rack.records.values().filter(|it| it.stage.is_active()).map(|it| it.node).collect();
    rack.machines.values_mut().for_each(|machine| machine.reloads = 1);
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Done)), (RolloutState::Done, 4));
    let [first, newer] = ["new", "new-1"].map(|name| generation(&profile(name)));
    for (id, machine) in &rack.machines {
        let wanted = if soaking.contains(id) { first } else { newer };
        assert_eq!((machine.settings.booted, reboots(machine)), (Some(wanted), 1));
        let reason = soaking.contains(id).then_some("a newer generation exists");
        assert_eq!(rack.records[id].reason.as_deref(), reason);
        assert!(machine.serves() && machine.settings.pinned.is_none());
    }
}

#[test]
fn canary_that_is_left_out_does_not_open_the_next_wave() {
    let mut rack = Rack::new(
        13,
        RolloutPolicy { workloads: WorkPolicy::Skip, ..policy(Amount::Count(12), None) },
    );
    let canary = rack.records.values().find(|record| record.wave == 0).unwrap().node;
    rack.machines.get_mut(&canary).unwrap().work = 100_000;
    rack.machines.values_mut().for_each(|machine| machine.on_new = Boot::Degraded);
    rack.run();
    assert_eq!((rack.rollout.state, rack.stage(0)), (RolloutState::Failed, NodeStage::Skipped));
    assert_eq!((rack.count(NodeStage::Returned), rack.count(NodeStage::Waiting)), (1, 11));
}

#[test]
fn outage_between_two_waves_leaves_no_node_out() {
    let mut rack = Rack::new(6, without_canaries(2));
    rack.run_until(|rack| rack.count(NodeStage::Done) == 2);
    set_links(&mut rack, NodeStage::Waiting, false);
    for _ in 0..60 {
        rack.tick(|| false);
    }
    assert!(rack.waits.as_ref().unwrap().contains("is offline"), "{:?}", rack.waits);
    set_links(&mut rack, NodeStage::Waiting, true);
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Done)), (RolloutState::Done, 6));
}

#[test]
fn node_that_served_and_stays_offline_counts_as_a_failure() {
    let mut rack = Rack::new(6, without_canaries(2));
    rack.run_until(|rack| rack.count(NodeStage::Done) == 2);
    set_links(&mut rack, NodeStage::Waiting, false);
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Failed)), (RolloutState::Failed, 2));
    assert_eq!((rack.count(NodeStage::Done), rack.count(NodeStage::Skipped)), (4, 0));
}

#[test]
fn node_that_an_operator_drains_after_its_reboot_stays_out_of_service() {
    for phase in [Phase::Maintenance, Phase::Draining] {
        let mut rack = Rack::new(1, policy(Amount::Count(1), None));
        rack.run_until(|rack| {
            rack.count(NodeStage::Soaking) == 1 && rack.machines.values().all(Machine::serves)
        });
        rack.tick(|| false);
        rack.machine(0).phase = phase;
        rack.machine(0).work = 100_000;
        rack.run();
        assert_eq!((rack.stage(0), rack.machine(0).phase), (NodeStage::Done, phase));
        let record = rack.records.values().next().unwrap();
        assert!(record.reason.as_ref().unwrap().contains("another order"), "{record:?}");
    }
}

#[test]
fn refused_return_is_a_failure_without_a_second_reboot() {
    let mut rack = Rack::new(1, policy(Amount::Count(1), None));
    let refused = NodeOrder::AssignProfile { profile: profile("old") };
    rack.machine(0).on_new = Boot::Degraded;
    rack.machine(0).refuses = Some(refused);
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Failed);
    let reason = rack.records.values().next().unwrap().reason.clone().unwrap();
    let both =
        reason.contains("checks do not pass") && reason.ends_with("it cannot return: it is gone");
    assert!(both, "{reason}");
    assert_eq!(reboots(rack.machine(0)), 1);
}

/// A finished rollout over so many nodes, and the begin of its undo.
fn undo_of_rollout(nodes: u32) -> Rack {
    let mut rack = Rack::new(nodes, policy(Amount::Count(1), None));
    rack.run();
    let done = rack.records.clone();
    (rack.rollout.state, rack.rollout.target) = (RolloutState::Running, RolloutTarget::Previous);
    rack.plan();
    for record in rack.records.values_mut() {
        record.previous = done[&record.node].before.clone();
    }
    rack
}

#[test]
fn return_waits_until_the_next_boot_is_known_and_pins_nothing() {
    let mut rack = undo_of_rollout(1);
    rack.machine(0).is_stale = true;
    for _ in 0..20 {
        rack.tick(|| false);
    }
    assert_eq!((reboots(rack.machine(0)), rack.machine(0).settings.profile.as_str()), (1, "old"));
    rack.machine(0).is_stale = false;
    rack.run();
    assert_eq!(rack.stage(0), NodeStage::Done);
    let pins = |order: &NodeOrder| matches!(order, NodeOrder::Pin { .. });
    assert!(!rack.machine(0).orders.iter().any(pins), "{:?}", rack.machine(0).orders);
    assert_eq!(rack.machine(0).settings.booted, Some(generation(&profile("old"))));
}

#[test]
fn reload_during_an_undo_fails_no_node_in_progress() {
    let mut rack = undo_of_rollout(2);
    rack.run_until(|rack| rack.count(NodeStage::Soaking) == 1);
    rack.machines.values_mut().for_each(|machine| machine.reloads = 1);
    rack.run();
    assert_eq!((rack.rollout.state, rack.count(NodeStage::Done)), (RolloutState::Done, 2));
    for machine in rack.machines.values() {
        assert_eq!(machine.settings.booted, Some(generation(&profile("old"))));
    }
}
