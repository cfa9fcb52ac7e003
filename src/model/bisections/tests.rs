//! Tests of the search, with simulated verdicts.

use super::*;
use crate::{
    fleet::{AuditContext, Generation, Principal, Verb},
    rollouts::{NodeStage, RolloutNode},
};
use meshd_types::{BisectionId, CorrelationId, Digest, NodeId, RolloutId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

fn node(letter: char) -> NodeId {
    letter.to_string().repeat(8).parse().expect("an ID")
}

fn bisection(generations: u8, nodes: &str) -> Bisection {
    let by = AuditContext::new(Principal::Operator(0), Verb::Reboot, CorrelationId([0; 8]));
    Bisection {
        id: BisectionId([1; 4]),
        profile: "compute".parse().expect("a name"),
        generations: (0..generations).map(|byte| Generation(Digest([byte; 32]))).collect(),
        nodes: nodes.chars().map(node).collect(),
        check: "jobs".parse().expect("a name"),
        runs: 1,
        verify: false,
        node_timeout_s: 60,
        soak_s: 1,
        by,
        started_at: Timestamp::EPOCH,
        state: BisectionState::Running,
        ends_as: None,
        reason: None,
        first_bad: None,
        probes: Vec::new(),
        before: BTreeMap::new(),
        served: BTreeSet::new(),
        returning: None,
        finished_at: None,
    }
}

/// Boots until there is a result.
fn run(
    bisection: &mut Bisection,
    mut verdict: impl FnMut(usize, NodeId) -> ProbeVerdict,
) -> NextProbe {
    for _ in 0..100 {
        let NextProbe::Boot { index, node } = next_probe(bisection) else { break };
        let verdict = Some(verdict(index, node));
        let rollout = RolloutId([2; 4]);
        bisection.probes.push(Probe { index, node, rollout, verdict, reason: None, lost: false });
    }
    next_probe(bisection)
}

fn good_below(first_bad: usize) -> impl Fn(usize, NodeId) -> ProbeVerdict {
    move |index, _| if index < first_bad { ProbeVerdict::Good } else { ProbeVerdict::Bad }
}

#[test]
fn each_of_16_generations_is_found_in_4_boots() {
    for first_bad in 1..=16 {
        let mut search = bisection(17, "a");
        assert_eq!(run(&mut search, good_below(first_bad)), NextProbe::FirstBad(first_bad));
        assert_eq!(search.probes.len(), 4, "{first_bad}");
    }
}

#[test]
fn verified_result_has_two_boots_more_and_tests_both_ends() {
    for first_bad in 1..=16 {
        let mut search = Bisection { verify: true, ..bisection(17, "a") };
        assert_eq!(run(&mut search, good_below(first_bad)), NextProbe::FirstBad(first_bad));
        assert_eq!(search.probes.len(), 6, "{first_bad}");
    }
    // The operator's good generation is bad: the check does not say what he said.
    let mut wrong = Bisection { verify: true, ..bisection(5, "a") };
    let NextProbe::Failed(reason) = run(&mut wrong, good_below(0)) else { panic!("it is bad") };
    assert!(reason.contains("not deterministic: generation 000000"), "{reason}");
}

#[test]
fn check_with_different_results_is_not_deterministic() {
    let mut flapping = Bisection { verify: true, ..bisection(17, "a") };
    let mut calls = 0;
    let outcome = run(&mut flapping, |index, node| {
        calls += 1;
        // The first answer about the culprit differs from the second.
        if calls == 1 { ProbeVerdict::Bad } else { good_below(12)(index, node) }
    });
    let NextProbe::Failed(reason) = outcome else { panic!("{outcome:?}") };
    assert!(reason.starts_with("the check is not deterministic: "), "{reason}");
    let mut mixed = bisection(17, "a");
    let outcome = run(&mut mixed, |_, _| ProbeVerdict::Mixed);
    assert!(matches!(&outcome, NextProbe::Failed(why) if why.contains("not deterministic")));
    assert_eq!(mixed.probes.len(), 1);
}

#[test]
fn generation_that_does_not_boot_is_tried_on_each_node_and_then_passed_over() {
    let mut search = bisection(17, "ab");
    let outcome = run(&mut search, |index, node| match index {
        8 => ProbeVerdict::Untested,
        _ => good_below(13)(index, node),
    });
    assert_eq!(outcome, NextProbe::FirstBad(13));
    let tried: Vec<_> = search.probes.iter().filter(|probe| probe.index == 8).collect();
    assert_eq!(tried.len(), 2);
    assert_ne!(tried[0].node, tried[1].node);
    let mut between = bisection(5, "a");
    let outcome = run(&mut between, |index, node| match index {
        2 | 3 => ProbeVerdict::Untested,
        _ => good_below(3)(index, node),
    });
    let NextProbe::Failed(reason) = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("is one of 020202") && reason.contains("to 040404"), "{reason}");
}

#[test]
fn two_neighbours_need_no_boot() {
    assert_eq!(next_probe(&bisection(2, "a")), NextProbe::FirstBad(1));
    assert_eq!(untested(&bisection(17, "a")), 16);
}

#[test]
fn node_that_stays_offline_gets_no_further_probe() {
    let mut search = bisection(17, "ab");
    let index = 8;
    let verdict = Some(ProbeVerdict::Untested);
    let reason = Some("not healthy".to_owned());
    let rollout = RolloutId([2; 4]);
    let lost = Probe { index, node: node('a'), rollout, verdict, reason, lost: true };
    search.probes.push(lost.clone());
    assert_eq!(run(&mut search, good_below(13)), NextProbe::FirstBad(13));
    assert!(search.probes[1..].iter().all(|probe| probe.node == node('b')));
    let mut alone = bisection(17, "a");
    alone.probes.push(lost);
    let NextProbe::Failed(reason) = next_probe(&alone) else { panic!("no node is left") };
    assert!(reason.ends_with("not healthy"), "{reason}");
}

#[test]
fn each_node_that_did_not_return_is_named() {
    let mut search = bisection(17, "ab");
    let record = |letter: char, stage: NodeStage| RolloutNode {
        stage,
        ..RolloutNode::waiting(RolloutId([2; 4]), node(letter), format!("n-{letter}"), 0)
    };
    search.add_unreturned(&[record('a', NodeStage::Done), record('b', NodeStage::Returned)]);
    assert_eq!(search.reason, None);
    let silent =
        RolloutNode { reason: Some("silent".to_owned()), ..record('a', NodeStage::Failed) };
    search.add_unreturned(&[silent, record('b', NodeStage::Skipped)]);
    let expected = "nodes that did not return: n-a: silent, n-b: skipped";
    assert_eq!(search.reason.as_deref(), Some(expected));
}
