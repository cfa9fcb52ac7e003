//! The present state of nodes, as a step reads it.

use super::Memory;
use crate::{
    environment::records::group_members, generations::Generations, links::Links, locks::LeafGuard,
    vms::active_work,
};
use meshd_config::Site;
use meshd_model::{
    boot,
    fleet::{ConditionKind, Generation, LabelKey, Node, Phase},
    operations::{NodeOperationState, NodeOrder},
    rollouts::{BootKey, EndedProgram, Inventory, NodePresent, NodeSettings},
};
use meshd_store::Model;
use meshd_types::{GroupName, NodeId, RolloutId};
use std::collections::{BTreeMap, BTreeSet};

/// State of rollouts in memory that a step reads, as of its begin.
pub(super) struct Orders {
    ordering: BTreeSet<NodeId>,
    refusals: BTreeMap<NodeId, meshd_model::rollouts::RefusedOrder>,
    pub(super) ended: BTreeMap<(RolloutId, NodeId), EndedProgram>,
    /// Nodes whose program waits for its permit.
    pub(super) queued: BTreeSet<(RolloutId, NodeId)>,
}

impl Orders {
    pub(super) fn of(memory: &LeafGuard<'_, Memory>) -> Self {
        let refusals = memory.refusals.iter();
        let queued = memory.running.iter().filter(|(_, running)| !running.has_begun);
        Orders {
            ordering: memory.ordering.clone(),
            refusals: refusals.map(|(id, (refusal, _))| (*id, refusal.clone())).collect(),
            ended: memory.ended.clone(),
            queued: queued.map(|(key, _)| *key).collect(),
        }
    }
}

/// The state of all nodes as of one moment, for one rollout.
pub(super) struct SiteInventory<'a> {
    pub(super) model: &'a Model,
    pub(super) site: &'a Site,
    pub(super) links: &'a Links,
    pub(super) generations: &'a Generations,
    pub(super) orders: &'a Orders,
    /// `None` while a rollout is planned.
    pub(super) rollout: Option<RolloutId>,
    pub(super) domain: Option<&'a LabelKey>,
}

impl SiteInventory<'_> {
    fn present(&self, id: NodeId) -> Option<&Node> {
        self.model.node(id).filter(|node| node.phase != Phase::Removed)
    }

    fn has_order(&self, id: NodeId, is_meant: impl Fn(&NodeOrder) -> bool) -> bool {
        self.model.open_operations_of(id).any(|(head, _)| is_meant(&head.order))
    }

    /// The generation of a node that its goal in the rollout names.
    fn goal(&self, id: NodeId) -> Option<Generation> {
        let goal = self.model.rollout_nodes(self.rollout?).get(&id)?.goal?;
        let history = self.model.history(id)?;
        let own = history.get(goal).or_else(|| history.of_revision(goal))?;
        Some(own.generation)
    }

    /// Large operations reach their nodes in the background.
    fn has_pending_order(&self, id: NodeId) -> bool {
        let mut open = self.model.open_operations_of(id);
        open.any(|(_, record)| record.state == NodeOperationState::Pending)
    }
}

impl Inventory for SiteInventory<'_> {
    fn node(&self, id: NodeId) -> Option<NodePresent> {
        let node = self.present(id)?;
        let kernel = node.facts.as_ref().map(|facts| facts.system.kernel_boot_id.clone());
        let is_next_stale = self.generations.is_stale(id);
        let looping = node.conditions.iter().find(|found| found.kind == ConditionKind::BootLoop);
        Some(NodePresent {
            phase: node.phase,
            is_linked: self.links.is_linked(id),
            passes: node.passes(),
            settings: NodeSettings {
                profile: boot::effective_profile(self.site, node).name.clone(),
                pinned: node.pinned,
                booted: node.booted,
            },
            // What an old scan found may be wrong.
            next: node.generation.filter(|_| !is_next_stale),
            is_next_stale,
            boot: BootKey { session: node.boot, kernel: kernel.unwrap_or_default() },
            boot_loop: looping.map(|condition| condition.detail.clone()),
            has_work: !active_work(self.model, id).is_empty(),
            is_ordering: self.orders.ordering.contains(&id) || self.has_pending_order(id),
            is_rebooting: self.has_order(id, |order| order.is_reboot() || order.cuts_power()),
            domain: self.domain.and_then(|key| node.labels.get(key).cloned()),
            refusal: self.orders.refusals.get(&id).cloned(),
            goal: self.goal(id),
            is_program_queued: self
                .rollout
                .is_some_and(|rollout| self.orders.queued.contains(&(rollout, id))),
            ended: self.rollout.and_then(|rollout| self.orders.ended.get(&(rollout, id))).cloned(),
        })
    }

    fn exists(&self, id: NodeId) -> bool {
        self.present(id).is_some()
    }

    fn serves(&self, id: NodeId) -> bool {
        let leaves = |order: &NodeOrder| {
            order.cuts_power()
                || order.is_reboot()
                || matches!(
                    order,
                    NodeOrder::Drain { .. }
                        | NodeOrder::Maintenance
                        | NodeOrder::Quarantine
                        | NodeOrder::Reject
                        | NodeOrder::Remove
                        | NodeOrder::Fence
                )
        };
        let is_elsewhere = || {
            let mut others = self.model.open_rollouts().filter(|id| Some(*id) != self.rollout);
            others.any(|other| {
                let record = self.model.rollout_nodes(other).get(&id);
                record.is_some_and(|record| record.stage.is_active())
            })
        };
        self.model.node(id).is_some_and(|node| node.phase.accepts_work())
            && self.links.is_linked(id)
            && !self.has_order(id, leaves)
            && !is_elsewhere()
    }

    fn group(&self, name: &GroupName) -> Option<Vec<NodeId>> {
        let group = self.site.groups.iter().find(|group| group.name == *name)?;
        let members = group_members(self.model, group);
        // A replaced node has the new ID.
        Some(members.iter().filter_map(|id| Some(self.model.current_node(*id)?.id)).collect())
    }
}
