//! The generation to boot next, or the result.

use super::{Bisection, Probe, ProbeVerdict};
use meshd_types::NodeId;
use std::{collections::BTreeSet, ops::Range};

/// What follows from the verdicts so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextProbe {
    /// Boot this generation on this node.
    Boot { index: usize, node: NodeId },
    /// Position of the first bad generation.
    FirstBad(usize),
    /// There is no result, for this reason.
    Failed(String),
}

/// Returns the next probe: in the middle between the newest good and the oldest bad generation. The
/// ends of the range count as good and bad without a boot.
pub fn next_probe(bisection: &Bisection) -> NextProbe {
    let verdicts = Verdicts { bisection };
    if let Some(contradiction) = verdicts.contradiction() {
        return NextProbe::Failed(format!("the check is not deterministic: {contradiction}"));
    }
    let (good, bad) = verdicts.bounds();
    let middle = (good + bad) / 2;
    let mut open: Vec<usize> =
        (good + 1..bad).filter(|index| verdicts.unused_node(*index).is_some()).collect();
    open.sort_by_key(|index| (index.abs_diff(middle), *index));
    if let Some(index) = open.first() {
        return verdicts.boot(*index);
    }
    if bad - good > 1 {
        let [from, to] = [good + 1, bad].map(|index| bisection.generations[index].0.short());
        let why = verdicts.untested_reason(good + 1..bad);
        let reason = format!(
            "the first bad generation is one of {from} to {to}; the others do not boot: {why}"
        );
        return NextProbe::Failed(reason);
    }
    for index in [good, bad].into_iter().filter(|_| bisection.verify) {
        // The ends of the range had no boot yet.
        let is_end = index == 0 || index == bisection.generations.len() - 1;
        let needed = if is_end { 1 } else { 2 };
        if verdicts.tested(index) < needed {
            if verdicts.unused_node(index).is_none() {
                let why = verdicts.untested_reason(index..index + 1);
                return NextProbe::Failed(format!("the result cannot be verified: {why}"));
            }
            return verdicts.boot(index);
        }
    }
    NextProbe::FirstBad(bad)
}

/// Returns how many generations may be the first bad one.
pub fn untested(bisection: &Bisection) -> usize {
    let (good, bad) = Verdicts { bisection }.bounds();
    bad.saturating_sub(good)
}

struct Verdicts<'a> {
    bisection: &'a Bisection,
}

impl Verdicts<'_> {
    fn of(&self, verdict: ProbeVerdict) -> impl Iterator<Item = &Probe> {
        self.bisection.probes.iter().filter(move |probe| probe.verdict == Some(verdict))
    }

    /// Positions of the newest good and of the oldest bad generation.
    fn bounds(&self) -> (usize, usize) {
        let good = self.of(ProbeVerdict::Good).map(|probe| probe.index).max();
        let bad = self.of(ProbeVerdict::Bad).map(|probe| probe.index).min();
        (good.unwrap_or(0), bad.unwrap_or(self.bisection.generations.len() - 1))
    }

    fn name(&self, index: usize) -> String {
        self.bisection.generations[index].0.short()
    }

    fn contradiction(&self) -> Option<String> {
        if let Some(mixed) = self.of(ProbeVerdict::Mixed).next() {
            let why = mixed.reason.as_deref().unwrap_or("its runs differ");
            return Some(format!("generation {}: {why}", self.name(mixed.index)));
        }
        // The ends count with what the operator said of them.
        let (good, bad) = self.bounds();
        if good < bad {
            return None;
        }
        if good == bad {
            return Some(format!("generation {} was good and bad", self.name(good)));
        }
        let [good, bad] = [good, bad].map(|index| self.name(index));
        Some(format!("generation {good} was good, and the older generation {bad} was bad"))
    }

    /// Number of boots of a generation with a result.
    fn tested(&self, index: usize) -> usize {
        let results = self.of(ProbeVerdict::Good).chain(self.of(ProbeVerdict::Bad));
        results.filter(|probe| probe.index == index).count()
    }

    /// Returns a node that has a link and has not failed to boot a generation: the nodes take
    /// turns.
    fn unused_node(&self, index: usize) -> Option<NodeId> {
        let untested = self.of(ProbeVerdict::Untested);
        let failed = untested.filter(|probe| probe.index == index || probe.lost);
        let failed: BTreeSet<NodeId> = failed.map(|probe| probe.node).collect();
        let nodes = &self.bisection.nodes;
        let turn = self.bisection.probes.len() % nodes.len().max(1);
        let mut in_turn = nodes.iter().cycle().skip(turn).take(nodes.len());
        in_turn.find(|node| !failed.contains(node)).copied()
    }

    fn boot(&self, index: usize) -> NextProbe {
        match self.unused_node(index) {
            Some(node) => NextProbe::Boot { index, node },
            None => NextProbe::Failed("there is no node".to_owned()),
        }
    }

    fn untested_reason(&self, of: Range<usize>) -> String {
        let mut untested =
            self.of(ProbeVerdict::Untested).filter(|probe| of.contains(&probe.index));
        let mut lost = self.of(ProbeVerdict::Untested).filter(|probe| probe.lost);
        let first = untested.next().or_else(|| lost.next());
        let reason = first.and_then(|probe| probe.reason.clone());
        reason.unwrap_or_else(|| "no node is left".to_owned())
    }
}
