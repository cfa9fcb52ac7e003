//! Rollouts: planned changes of many nodes. Records hold the plan and its progress; each second, a
//! step compares them with the nodes and gives the next orders.
//!
//! | module | content |
//! | --- | --- |
//! | `bisections` | searches for the first bad generation, probe by probe |
//! | `control` | pause, resume, abort, undo |
//! | `drive` | advances rollouts, and gives their orders to nodes |
//! | `error` | why a request about a rollout is refused |
//! | `present` | the present state of nodes, as a step reads it |
//! | `programs` | runs the programs of the site that a rollout asks for |
//! | `start` | selects nodes, plans and starts |
//!
//! A step is one transaction: it reads the nodes and changes the records. Its orders are given after
//! that, as operations. An order that a kill loses is part of the next step, because that reads the
//! nodes again. State in memory is derived: running time since the last commit, orders that are
//! being given, refusals, programs that run.

mod bisections;
mod control;
mod drive;
mod error;
mod present;
mod programs;
mod start;

pub use bisections::BisectionRequest;
pub use error::RolloutError;
pub use start::{NodeGroup, PlannedRollout, RolloutRequest};

use super::NodeOps;
use crate::{environment::Environment, links::Links, locks::Leaf};
use meshd_model::rollouts::{
    EndedProgram, ProgramPoint, RefusedOrder, Rollout, RolloutNode, StageCounts, node_times,
    remaining_time,
};
use meshd_types::{NodeId, RolloutId};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, task::AbortHandle};

/// Maximum number of programs of the site at the same time.
const MAX_PROGRAMS: usize = 16;

/// Executes rollouts.
pub struct Rollouts {
    env: Arc<Environment>,
    links: Arc<Links>,
    nodes: Arc<NodeOps>,
    memory: Arc<Leaf<Memory>>,
    program_permits: Arc<Semaphore>,
}

/// State of rollouts in memory. All of it may be lost.
#[derive(Default)]
struct Memory {
    clocks: BTreeMap<RolloutId, RunClock>,
    /// Nodes to which an order is being given.
    ordering: BTreeSet<NodeId>,
    /// The last refused order of each node, and when it was refused.
    refusals: BTreeMap<NodeId, (RefusedOrder, Duration)>,
    /// Why no further node of a rollout begins at present.
    waits: BTreeMap<RolloutId, String>,
    running: BTreeMap<(RolloutId, NodeId), RunningProgram>,
    /// Results of programs that no step has seen.
    ended: BTreeMap<(RolloutId, NodeId), EndedProgram>,
}

/// A program that runs, or waits for its permit.
struct RunningProgram {
    point: ProgramPoint,
    abort: AbortHandle,
    /// False while it waits for its permit.
    has_begun: bool,
}

/// The running time of a rollout.
struct RunClock {
    /// Monotonic time of the last reading.
    read_at: Duration,
    clock: Duration,
}

impl Rollouts {
    pub(crate) fn new(env: Arc<Environment>, links: Arc<Links>, nodes: Arc<NodeOps>) -> Self {
        let program_permits = Arc::new(Semaphore::new(MAX_PROGRAMS));
        Rollouts { env, links, nodes, memory: Arc::default(), program_permits }
    }

    /// Collects the views of all rollouts. `None` omits one.
    pub fn collect<R>(&self, mut view: impl FnMut(&Rollout, StageCounts) -> Option<R>) -> Vec<R> {
        self.env.store.read(|model| {
            let all = model.rollouts();
            all.filter_map(|head| view(head, model.rollout_counts(head.id))).collect()
        })
    }

    /// Returns a rollout, and the number of its nodes in each stage.
    pub fn rollout(&self, id: RolloutId) -> Result<(Rollout, StageCounts), RolloutError> {
        let found = self
            .env
            .store
            .read(|model| Some((model.rollout(id)?.clone(), model.rollout_counts(id))));
        found.ok_or(RolloutError::Unknown(id))
    }

    /// Returns the number of nodes in each stage, for each wave of a rollout.
    pub fn board(&self, id: RolloutId) -> BTreeMap<u32, StageCounts> {
        self.env.store.read(|model| {
            let mut waves: BTreeMap<u32, StageCounts> = BTreeMap::new();
            for record in model.rollout_nodes(id).values() {
                waves.entry(record.wave).or_default().add(record.stage);
            }
            waves
        })
    }

    /// Returns why no further node of a rollout begins at present.
    pub fn waits(&self, id: RolloutId) -> Option<String> {
        self.memory.lock().waits.get(&id).cloned()
    }

    /// Estimates the remaining time of a stored rollout.
    pub fn remaining(&self, id: RolloutId) -> Option<Duration> {
        let stored = self.env.store.read(|model| {
            let head = model.rollout(id)?.clone();
            Some((head, model.rollout_nodes(id).values().cloned().collect::<Vec<_>>()))
        });
        let (head, nodes) = stored?;
        self.remaining_of(&head, &nodes)
    }

    /// Estimates the time of a rollout by its own nodes, or by those of the newest rollout that
    /// changed nodes in the same way. Those had the soak time of their rollout, which is known.
    pub fn remaining_of(&self, head: &Rollout, nodes: &[RolloutNode]) -> Option<Duration> {
        let kind = std::mem::discriminant(&head.target);
        let earlier = self.env.store.read(|model| {
            let finished = model.rollouts().filter(|other| {
                other.finished_at.is_some() && std::mem::discriminant(&other.target) == kind
            });
            let mut finished: Vec<&Rollout> = finished.collect();
            finished.sort_by_key(|other| std::cmp::Reverse(other.finished_at));
            let soak = |rollout: &Rollout| Duration::from_secs(rollout.policy.soak_s.into());
            let mut times = finished.iter().map(|other| {
                let times = node_times(model.rollout_nodes(other.id)).into_iter();
                let times = times.map(|time| time.saturating_sub(soak(other)) + soak(head));
                times.collect::<Vec<Duration>>()
            });
            times.find(|times| !times.is_empty()).unwrap_or_default()
        });
        let nodes = nodes.iter().map(|record| (record.node, record.clone())).collect();
        remaining_time(head, &nodes, earlier, self.env.now())
    }

    /// Collects the views of the nodes of a rollout, by node ID. `None` omits one.
    pub fn collect_nodes<R>(
        &self,
        id: RolloutId,
        view: impl FnMut(&RolloutNode) -> Option<R>,
    ) -> Vec<R> {
        self.env.store.read(|model| model.rollout_nodes(id).values().filter_map(view).collect())
    }
}
