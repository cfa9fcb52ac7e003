//! Runs the programs of the site that a rollout asks for, on the central node.
//!
//! Exit code 0: passed. 75 (`EX_TEMPFAIL`): a gate is asked again later. All others: failed; the last
//! line of the error output is the reason. A program that does not start, or that a signal ends, says
//! nothing of the node. A result is lost when meshd ends: the program runs again.

use super::{Memory, Rollouts, RunningProgram};
use crate::locks::Leaf;
use meshd_bmc::CommandLine;
use meshd_config::SiteProgram;
use meshd_model::{
    fleet::{Generation, Node},
    operations::BmcFailure,
    rollouts::{EndedProgram, ProgramOutcome, ProgramPoint, Rollout},
};
use meshd_types::{NodeId, RolloutId};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Exit code of a gate that wants to be asked again.
const NOT_YET: i32 = 75;

impl Rollouts {
    /// Starts the programs of a step that do not run yet. Ends gates that no node waits for; other
    /// programs change something, so they run to their end.
    pub(super) fn run_programs(&self, head: &Rollout, wanted: &[(NodeId, ProgramPoint)]) {
        let nodes = self.env.store.read(|model| {
            let wanted = wanted.iter();
            let records = model.rollout_nodes(head.id);
            let with_goal = |(id, _): &(NodeId, ProgramPoint)| {
                Some((model.node(*id)?.clone(), records.get(id)?.goal))
            };
            wanted.map(with_goal).collect::<Vec<_>>()
        });
        let site = self.env.site();
        let gates = wanted.iter().filter(|(_, point)| *point == ProgramPoint::Gate);
        let gates: BTreeSet<NodeId> = gates.map(|(node, _)| *node).collect();
        let mut memory = self.memory.lock();
        memory.running.retain(|(rollout, node), running| {
            let is_unwanted =
                *rollout == head.id && running.point == ProgramPoint::Gate && !gates.contains(node);
            if is_unwanted {
                running.abort.abort();
            }
            !is_unwanted
        });
        for ((id, point), node) in wanted.iter().zip(nodes) {
            let key = (head.id, *id);
            let point = *point;
            let (Some((node, goal)), Some(name)) = (node, point.program(&head.policy)) else {
                continue;
            };
            if memory.running.contains_key(&key) || memory.ended.contains_key(&key) {
                continue;
            }
            let Some(SiteProgram { program, args, timeout }) = site.programs.get(name).cloned()
            else {
                let outcome = ProgramOutcome::Unable("it is not in the site file".to_owned());
                memory.ended.insert(key, EndedProgram { point, outcome });
                continue;
            };
            let run = ProgramRun {
                key,
                point,
                line: CommandLine { program, args },
                limit: timeout,
                vars: variables(head, &node, goal, point),
                runs: if point == ProgramPoint::Gate { head.policy.gate_runs } else { 1 },
                permits: self.program_permits.clone(),
                memory: self.memory.clone(),
            };
            let abort = tokio::spawn(run.run()).abort_handle();
            memory.running.insert(key, RunningProgram { point, abort, has_begun: false });
        }
    }
}

impl Memory {
    /// Forgets the programs of rollouts that are not open, and results that a step has seen.
    pub(super) fn forget_programs(&mut self, is_open: impl Fn(RolloutId) -> bool) {
        self.ended.retain(|(rollout, _), _| is_open(*rollout));
        self.running.retain(|(rollout, _), running| {
            if !is_open(*rollout) && running.point == ProgramPoint::Gate {
                running.abort.abort();
            }
            is_open(*rollout)
        });
    }
}

fn variables(
    head: &Rollout,
    node: &Node,
    goal: Option<Generation>,
    point: ProgramPoint,
) -> Vec<(&'static str, String)> {
    let text =
        |generation: Option<Generation>| generation.map(|it| it.to_string()).unwrap_or_default();
    vec![
        ("MESHD_POINT", point.as_str().to_owned()),
        ("MESHD_ROLLOUT", head.id.to_string()),
        ("MESHD_NODE", node.id.to_string()),
        ("MESHD_NAME", node.name.clone()),
        ("MESHD_ADDRESS", node.address.map(|address| address.to_string()).unwrap_or_default()),
        ("MESHD_GENERATION", text(node.booted)),
        ("MESHD_GOAL", text(goal)),
    ]
}

/// A program to run for one node.
struct ProgramRun {
    key: (RolloutId, NodeId),
    point: ProgramPoint,
    line: CommandLine,
    limit: Duration,
    vars: Vec<(&'static str, String)>,
    /// Number of runs, which must have the same outcome.
    runs: u32,
    permits: Arc<Semaphore>,
    memory: Arc<Leaf<Memory>>,
}

impl ProgramRun {
    async fn run(self) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        if let Some(running) = self.memory.lock().running.get_mut(&self.key) {
            running.has_begun = true;
        }
        let outcome = self.outcome().await;
        let mut memory = self.memory.lock();
        // A rollout that ended meanwhile has forgotten it.
        if memory.running.remove(&self.key).is_some() {
            memory.ended.insert(self.key, EndedProgram { point: self.point, outcome });
        }
    }

    async fn outcome(&self) -> ProgramOutcome {
        let mut ended = Vec::new();
        for _ in 0..self.runs {
            let outcome = match self.line.run(&self.vars, self.limit).await {
                Ok((Some(0), _)) => ProgramOutcome::Passed,
                Ok((Some(NOT_YET), why)) => ProgramOutcome::NotYet(why),
                Ok((Some(code), why)) => ProgramOutcome::Failed(format!("exit code {code}: {why}")),
                Ok((None, why)) => ProgramOutcome::Unable(format!("ended by a signal: {why}")),
                Err(BmcFailure::Unanswered(why)) => ProgramOutcome::Failed(why),
                Err(error) => ProgramOutcome::Unable(error.reason().to_owned()),
            };
            let is_last = outcome.ends_runs();
            ended.push(outcome);
            if is_last {
                break;
            }
        }
        ProgramOutcome::of_runs(&ended)
    }
}

#[cfg(test)]
mod tests {
    use super::super::present::Orders;
    use super::*;

    fn run(script: &str, runs: u32, limit_ms: u64) -> ProgramRun {
        ProgramRun {
            key: (RolloutId([1; 4]), "0123abcd".parse().unwrap()),
            point: ProgramPoint::Gate,
            line: CommandLine {
                program: "/bin/sh".into(),
                args: vec!["-c".to_owned(), script.to_owned()],
            },
            limit: Duration::from_millis(limit_ms),
            vars: vec![("MESHD_NODE", "0123abcd".to_owned())],
            runs,
            permits: Arc::new(Semaphore::new(1)),
            memory: Arc::default(),
        }
    }

    #[tokio::test]
    async fn exit_code_of_a_program_is_its_outcome() {
        let outcome = async |script: &str| run(script, 1, 20_000).outcome().await;
        assert_eq!(outcome("exit 0").await, ProgramOutcome::Passed);
        let not_yet = ProgramOutcome::NotYet("0123abcd warms up".to_owned());
        assert_eq!(outcome("echo \"$MESHD_NODE warms up\" >&2; exit 75").await, not_yet);
        let failed = ProgramOutcome::Failed("exit code 1: no".to_owned());
        assert_eq!(outcome("echo no >&2; exit 1").await, failed);
        let ProgramOutcome::Failed(why) = run("sleep 1000", 1, 200).outcome().await else {
            panic!("it hangs")
        };
        assert!(why.contains("no end within"), "{why}");
        let ProgramOutcome::Unable(why) = outcome("kill -9 $$").await else { panic!("a signal") };
        assert!(why.starts_with("ended by a signal"), "{why}");
        let mut gone = run("", 1, 20_000);
        gone.line.program = "/no/such/program".into();
        assert!(matches!(gone.outcome().await, ProgramOutcome::Unable(_)));
    }

    #[tokio::test]
    async fn runs_with_different_outcomes_are_not_deterministic() {
        let folder = tempfile::tempdir().unwrap();
        let flag = folder.path().join("flag");
        let flapping = format!("test -e {0} && exit 0; touch {0}; exit 1", flag.display());
        let ProgramOutcome::Mixed(why) = run(&flapping, 2, 20_000).outcome().await else {
            panic!("it flaps")
        };
        assert!(why.contains("passed 1 of 2 runs"), "{why}");
    }

    #[tokio::test]
    async fn program_is_queued_until_it_has_its_permit() {
        let folder = tempfile::tempdir().unwrap();
        let flag = folder.path().join("flag");
        let run = run(&format!("until test -e {}; do sleep 0.02; done", flag.display()), 1, 20_000);
        let key = run.key;
        let memory = run.memory.clone();
        let permits = run.permits.clone();
        let is_queued = || Orders::of(&memory.lock()).queued.contains(&key);
        let taken = permits.acquire().await.unwrap();
        let task = tokio::spawn(run.run());
        let abort = task.abort_handle();
        let running = RunningProgram { point: ProgramPoint::Gate, abort, has_begun: false };
        memory.lock().running.insert(key, running);
        tokio::task::yield_now().await;
        assert!(is_queued(), "all permits are taken");
        drop(taken);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!is_queued(), "it has a permit");
        assert!(memory.lock().running.contains_key(&key), "it runs");
        std::fs::write(&flag, "").unwrap();
        task.await.unwrap();
        assert_eq!(memory.lock().ended[&key].outcome, ProgramOutcome::Passed);
    }
}
