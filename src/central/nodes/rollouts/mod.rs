//! Rollouts: planned changes of many nodes. Records hold the plan and its progress; each second, a
//! step compares them with the nodes and gives the next orders.
//!
//! | module | content |
//! | --- | --- |
//! | `control` | pause, resume, abort, undo |
//! | `drive` | advances rollouts, and gives their orders to nodes |
//! | `error` | why a request about a rollout is refused |
//! | `present` | the present state of nodes, as a step reads it |
//! | `start` | selects nodes, plans and starts |
//!
//! A step is one transaction: it reads the nodes and changes the records. Its orders are given after
//! that, as operations. An order that a kill loses is part of the next step, because that reads the
//! nodes again. State in memory is derived: running time since the last commit, orders that are
//! being given, refusals.

mod control;
mod drive;
mod error;
mod present;
mod start;

pub use error::RolloutError;
pub use start::{NodeGroup, PlannedRollout, RolloutRequest};

use super::NodeOps;
use crate::{environment::Environment, links::Links, locks::Leaf};
use meshd_model::rollouts::{RefusedOrder, Rollout, RolloutNode, StageCounts};
use meshd_types::{NodeId, RolloutId};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Executes rollouts.
pub struct Rollouts {
    env: Arc<Environment>,
    links: Arc<Links>,
    nodes: Arc<NodeOps>,
    memory: Arc<Leaf<Memory>>,
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
}

/// The running time of a rollout.
struct RunClock {
    /// Monotonic time of the last reading.
    read_at: Duration,
    clock: Duration,
}

impl Rollouts {
    pub(crate) fn new(env: Arc<Environment>, links: Arc<Links>, nodes: Arc<NodeOps>) -> Self {
        Rollouts { env, links, nodes, memory: Arc::default() }
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

    /// Collects the views of the nodes of a rollout, by node ID. `None` omits one.
    pub fn collect_nodes<R>(
        &self,
        id: RolloutId,
        view: impl FnMut(&RolloutNode) -> Option<R>,
    ) -> Vec<R> {
        self.env.store.read(|model| model.rollout_nodes(id).values().filter_map(view).collect())
    }
}
