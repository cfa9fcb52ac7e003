//! The remaining time of a rollout, estimated from nodes that are finished.

use super::{NodeStage, Rollout, RolloutNode};
use meshd_types::Timestamp;
use std::{collections::BTreeMap, time::Duration};

/// Returns the times that nodes of a rollout took, from the first order to health.
pub fn node_times(nodes: &BTreeMap<meshd_types::NodeId, RolloutNode>) -> Vec<Duration> {
    let done = nodes.values().filter(|record| record.stage == NodeStage::Done);
    done.filter_map(|record| Some(record.finished_at?.since(record.began_at?))).collect()
}

/// Estimates the time until all nodes are finished; `None` if no node has taken any time yet.
/// `earlier` are the times of nodes of earlier rollouts, which count while none of this one is
/// done. The estimate knows neither windows nor floors of other groups.
pub fn remaining_time(
    rollout: &Rollout,
    nodes: &BTreeMap<meshd_types::NodeId, RolloutNode>,
    earlier: Vec<Duration>,
    now: Timestamp,
) -> Option<Duration> {
    if rollout.state.is_final() {
        return None;
    }
    let own = node_times(nodes);
    let mut times = if own.is_empty() { earlier } else { own };
    times.sort();
    let usual = *times.get(times.len() / 2)?;
    let at_once = at_once(rollout, nodes.len());
    let mut waves: BTreeMap<u32, usize> = BTreeMap::new();
    for record in nodes.values().filter(|record| record.stage == NodeStage::Waiting) {
        *waves.entry(record.wave).or_default() += 1;
    }
    let ends = rollout.state.is_ending();
    let rounds: usize = waves.values().map(|count| count.div_ceil(at_once)).sum();
    let rounds = if ends { 0 } else { u32::try_from(rounds).unwrap_or(u32::MAX) };
    let active = nodes.values().filter(|record| record.stage.is_active());
    let current =
        active.filter_map(|record| Some(usual.saturating_sub(now.since(record.began_at?))));
    Some(usual.saturating_mul(rounds) + current.max().unwrap_or_default())
}

/// Returns how many nodes the floors of the rollout permit to leave at once, if all serve.
fn at_once(rollout: &Rollout, count: usize) -> usize {
    let own = rollout.policy.floors.iter().filter(|floor| floor.group.is_none());
    let out = own.map(|floor| count.saturating_sub(floor.serving.rounded_up(count)));
    out.min().unwrap_or(count).max(1)
}
