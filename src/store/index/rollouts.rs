//! Rollouts in memory: heads by ID, records of nodes by rollout, unfinished rollouts.

use crate::{
    Model,
    records::{RecordIndex, RolloutNodeKey},
};
use meshd_model::rollouts::{Rollout, RolloutNode, StageCounts};
use meshd_types::{NodeId, RolloutId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of stored rollouts. Rollouts that are not finished are never removed.
pub const MAX_STORED_ROLLOUTS: usize = 200;
/// Maximum number of rollouts that are not finished. More are refused.
pub const MAX_OPEN_ROLLOUTS: usize = 50;
/// Maximum number of stored records of nodes: five rollouts over the largest rack. Records of
/// rollouts that are not finished are never removed.
pub const MAX_ROLLOUT_NODES: usize = 50_000;

/// All rollouts, with derived indexes.
#[derive(Default)]
pub(crate) struct Rollouts {
    heads: BTreeMap<RolloutId, Rollout>,
    nodes: BTreeMap<RolloutId, BTreeMap<NodeId, RolloutNode>>,
    open: BTreeSet<RolloutId>,
}

impl RecordIndex<RolloutId, Rollout> for Rollouts {
    fn put_record(&mut self, id: RolloutId, head: Rollout) -> Option<Rollout> {
        if head.state.is_final() {
            self.open.remove(&id);
        } else {
            self.open.insert(id);
        }
        self.heads.insert(id, head)
    }

    fn remove_record(&mut self, id: &RolloutId) -> Option<Rollout> {
        self.open.remove(id);
        self.heads.remove(id)
    }
}

impl RecordIndex<RolloutNodeKey, RolloutNode> for Rollouts {
    fn put_record(&mut self, key: RolloutNodeKey, record: RolloutNode) -> Option<RolloutNode> {
        self.nodes.entry(key.owner).or_default().insert(key.node, record)
    }

    fn remove_record(&mut self, key: &RolloutNodeKey) -> Option<RolloutNode> {
        let records = self.nodes.get_mut(&key.owner)?;
        let record = records.remove(&key.node);
        if records.is_empty() {
            self.nodes.remove(&key.owner);
        }
        record
    }
}

/// The records of a rollout without nodes.
static NO_NODES: BTreeMap<NodeId, RolloutNode> = BTreeMap::new();

impl Model {
    /// All rollouts, by ID.
    pub fn rollouts(&self) -> impl Iterator<Item = &Rollout> {
        self.rollouts.heads.values()
    }

    pub fn rollout(&self, id: RolloutId) -> Option<&Rollout> {
        self.rollouts.heads.get(&id)
    }

    /// The records of the nodes of a rollout.
    pub fn rollout_nodes(&self, id: RolloutId) -> &BTreeMap<NodeId, RolloutNode> {
        self.rollouts.nodes.get(&id).unwrap_or(&NO_NODES)
    }

    /// Rollouts that are not finished.
    pub fn open_rollouts(&self) -> impl Iterator<Item = RolloutId> + '_ {
        self.rollouts.open.iter().copied()
    }

    /// The unfinished rollout of a node, with the record of the node.
    pub fn open_rollout_of(&self, node: NodeId) -> Option<(RolloutId, &RolloutNode)> {
        self.open_rollouts().find_map(|id| Some((id, self.rollout_nodes(id).get(&node)?)))
    }

    /// Number of nodes of a rollout in each stage.
    pub fn rollout_counts(&self, id: RolloutId) -> StageCounts {
        let mut counts = StageCounts::default();
        self.rollout_nodes(id).values().for_each(|record| counts.add(record.stage));
        counts
    }

    /// The finished rollouts to remove for one with `added` nodes, the oldest first.
    pub(crate) fn surplus_rollouts(&self, added: usize) -> Vec<RolloutId> {
        let all = &self.rollouts;
        let mut total: usize = all.nodes.values().map(BTreeMap::len).sum::<usize>() + added;
        let mut finished: Vec<&Rollout> =
            all.heads.values().filter(|head| head.state.is_final()).collect();
        finished.sort_by_key(|head| head.started_at);
        let mut heads = all.heads.len() + 1;
        let mut surplus = Vec::new();
        for head in finished {
            if heads <= MAX_STORED_ROLLOUTS && total <= MAX_ROLLOUT_NODES {
                break;
            }
            heads -= 1;
            total -= self.rollout_nodes(head.id).len();
            surplus.push(head.id);
        }
        surplus
    }
}
