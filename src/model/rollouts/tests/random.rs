//! Rollouts over many nodes, with failures, kills between any two steps, and orders of others.
//! Prints the times of plans and steps, which the simulation is part of.
//! `MESHD_SIM_SEEDS` and `MESHD_SIM_NODES` choose the number of runs and of nodes,
//! `MESHD_SIM_FIRST_SEED` the first run.

use super::rack::{Boot, Machine, Rack, generation, policy, profile};
use crate::{
    fleet::Phase,
    rollouts::{Amount, NodeStage, ProgramOutcome, RolloutPolicy, RolloutState, check_floors},
};
use std::time::{Duration, Instant};

/// A generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn floor_holds_and_every_node_ends_at_a_known_generation() {
    let nodes = number("MESHD_SIM_NODES", 150);
    let first = number("MESHD_SIM_FIRST_SEED", 0);
    for seed in first..first + number("MESHD_SIM_SEEDS", 5) {
        run(seed, nodes);
    }
}

fn run(seed: u32, nodes: u32) {
    let mut random = Random(seed.into());
    let floor = Amount::Percent(90 + u8::try_from(random.below(8)).unwrap());
    let wave = Amount::Percent(1 + u8::try_from(random.below(20)).unwrap());
    let max_failures = u32::try_from(random.below(u64::from(nodes) / 25 + 1)).unwrap();
    let by_rack = random.percent(50).then(|| "rack".parse().unwrap());
    let gate = random.percent(50).then(|| "jobs".parse().unwrap());
    let has_gate = gate.is_some();
    let mut rack = Rack::new(
        nodes,
        RolloutPolicy {
            max_failures,
            domain: by_rack,
            gate,
            node_timeout_s: 1200,
            run_timeout_s: Some(86_400),
            ..policy(wave, Some(floor))
        },
    );
    for machine in rack.machines.values_mut() {
        machine.domain = Some(format!("r{}", random.below(10)).parse().unwrap());
        machine.work = u32::try_from(random.below(30)).unwrap();
        if random.percent(1) {
            machine.on_new = [Boot::Degraded, Boot::Silent, Boot::Loop]
                [usize::try_from(random.below(3)).unwrap()];
        }
        if random.percent(1) {
            machine.phase = Phase::Degraded;
        }
    }
    let ids: Vec<_> = rack.machines.keys().copied().collect();
    let begun = Instant::now();
    let is_low = check_floors(&rack.rollout.policy.floors, &ids, &rack.machines).is_err();
    rack.plan();
    let planned = begun.elapsed();
    let mut slowest = Duration::ZERO;
    let mut interventions = nodes / 100;
    while !rack.rollout.state.is_final() {
        // What others do: remove, relabel, put into maintenance.
        if interventions > 0 && random.percent(2) {
            interventions -= 1;
            let id = ids[usize::try_from(random.below(ids.len() as u64)).unwrap()];
            let machine = rack.machines.get_mut(&id).unwrap();
            match random.below(3) {
                0 => machine.is_removed = true,
                1 => machine.domain = None,
                _ if machine.serves() => machine.phase = Phase::Maintenance,
                _ => {}
            }
        }
        // A node that its gate refuses serves, and returns.
        if has_gate && rack.outcomes.is_empty() && random.percent(2) {
            rack.outcomes.push(ProgramOutcome::Failed("slow jobs".to_owned()));
        }
        // Nothing that the process knew survives a kill: only records, and what nodes do.
        let is_killed = random.percent(10);
        let begun = Instant::now();
        rack.tick(|| is_killed && random.percent(50));
        slowest = slowest.max(begun.elapsed());
        assert!(rack.ticks < 20_000, "seed {seed}: {:?} {:?}", rack.rollout, rack.waits);
        if rack.rollout.state == RolloutState::Running && random.percent(1) {
            rack.rollout.state = RolloutState::Paused;
        } else if rack.rollout.state == RolloutState::Paused {
            rack.rollout.state = RolloutState::Running;
        }
    }
    check_end(&rack, seed);
    let state = rack.rollout.state;
    let steps = rack.ticks;
    let low = if is_low { ", with its floor broken," } else { "" };
    println!(
        "seed {seed}: {nodes} nodes{low} planned in {planned:?}, {state:?} after {steps} steps of at most {slowest:?}"
    );
}

/// Checks that each node runs one of both generations, and the one that its record states.
fn check_end(rack: &Rack, seed: u32) {
    let [old, new] = ["old", "new"].map(|name| generation(&profile(name)));
    for record in rack.records.values() {
        let machine: &Machine = &rack.machines[&record.node];
        if machine.is_removed {
            continue;
        }
        let text = || format!("seed {seed}: {record:?} {machine:?}");
        let booted = machine.settings.booted.expect("it booted once");
        match record.stage {
            NodeStage::Done => assert_eq!(booted, new, "{}", text()),
            NodeStage::Returned | NodeStage::Waiting => assert_eq!(booted, old, "{}", text()),
            NodeStage::Failed => assert_eq!(machine.next(), old, "{}", text()),
            NodeStage::Skipped => {}
            _ => panic!("not finished: {}", text()),
        }
    }
    match rack.rollout.state {
        RolloutState::Done => assert_eq!(rack.count(NodeStage::Waiting), 0),
        state => assert_eq!(state, RolloutState::Failed, "seed {seed}"),
    }
}
