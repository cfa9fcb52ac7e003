//! Selects the nodes of a rollout, divides them into waves, and starts it.

use super::{
    RolloutError, Rollouts,
    present::{Orders, SiteInventory},
};
use crate::nodes::{BATCH, MAX_BULK, boot_settings::check_profile};
use meshd_model::{
    boot,
    fleet::{AuditContext, Event, EventKind, Generation, Node, Phase, Selector},
    rollouts::{
        Inventory as _, NodeSettings, PlannedNode, Rollout, RolloutNode, RolloutPolicy,
        RolloutState, RolloutTarget, check_floors, waves,
    },
};
use meshd_store::{MAX_OPEN_ROLLOUTS, Model};
use meshd_types::{GroupName, Hostlist, NodeId, ProfileName, RolloutId, failpoint};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeGroup {
    Named(Hostlist),
    Labelled(Selector),
    Group(GroupName),
    /// Nodes that have a profile.
    OfProfile(ProfileName),
}

/// A rollout that an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutRequest {
    pub nodes: NodeGroup,
    pub target: RolloutTarget,
    pub policy: RolloutPolicy,
    /// Number of all nodes: confirms that they change at once.
    pub all_at_once: Option<u32>,
}

/// A rollout with its waves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRollout {
    pub head: Rollout,
    pub nodes: Vec<RolloutNode>,
}

impl Rollouts {
    /// Plans a rollout. Changes nothing.
    pub async fn plan(
        &self,
        request: &RolloutRequest,
        audit: &AuditContext,
    ) -> Result<PlannedRollout, RolloutError> {
        let ids = self.select(&request.nodes)?;
        self.plan_nodes(&ids, request.target.clone(), &request.policy, audit).await
    }

    pub(super) async fn plan_nodes(
        &self,
        ids: &[NodeId],
        target: RolloutTarget,
        policy: &RolloutPolicy,
        audit: &AuditContext,
    ) -> Result<PlannedRollout, RolloutError> {
        self.check(&target, policy, ids)?;
        // What the nodes boot next decides which of them have to change.
        for batch in ids.chunks(BATCH) {
            self.nodes.generations.scan(batch.to_vec()).await?;
        }
        let goals = self.goals(&target, ids)?;
        let orders = Orders::of(&self.memory.lock());
        let site = self.env.site();
        self.env.store.read(|model| {
            let inventory = self.inventory(model, &site, &orders);
            check_floors(&policy.floors, ids, &inventory)?;
            let planned = ids.iter().filter_map(|id| model.node(*id)).map(|node| PlannedNode {
                id: node.id,
                name: node.name.clone(),
                serves: inventory.serves(node.id),
                domain: policy.domain.as_ref().and_then(|key| node.labels.get(key).cloned()),
            });
            let waves = waves(policy, planned.collect());
            let id = self.unused_id(model);
            let head = Rollout {
                id,
                target,
                policy: policy.clone(),
                by: audit.clone(),
                started_at: self.env.now(),
                state: RolloutState::Running,
                reason: None,
                frozen: false,
                nodes: u32::try_from(ids.len()).unwrap_or(u32::MAX),
                waves: u32::try_from(waves.len()).unwrap_or(u32::MAX),
                clock_ms: 0,
                finished_at: None,
                undoes: None,
            };
            let numbered = (0..).zip(waves).flat_map(|(number, wave)| {
                let goals = &goals;
                wave.into_iter().map(move |node| RolloutNode {
                    served: node.serves,
                    goal: goals.get(&node.id).copied(),
                    ..RolloutNode::waiting(id, node.id, node.name, number)
                })
            });
            Ok(PlannedRollout { nodes: numbered.collect(), head })
        })
    }

    /// Finds the generation to which each node is pinned.
    fn goals(
        &self,
        target: &RolloutTarget,
        ids: &[NodeId],
    ) -> Result<BTreeMap<NodeId, Generation>, RolloutError> {
        let mut goals = BTreeMap::new();
        for id in ids.iter().filter(|_| target.pins()) {
            goals.extend(self.nodes.rollout_goal(*id, target)?.map(|goal| (*id, goal)));
        }
        Ok(goals)
    }

    /// Plans and starts a rollout.
    pub async fn start(
        &self,
        request: &RolloutRequest,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        let planned = self.plan(request, audit).await?;
        self.start_planned(planned, request.all_at_once, audit).await
    }

    /// Stores a planned rollout, which starts it. `all_at_once` is the number of nodes, for a
    /// rollout with one wave.
    pub(super) async fn start_planned(
        &self,
        planned: PlannedRollout,
        all_at_once: Option<u32>,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        let PlannedRollout { head, nodes } = planned;
        if head.waves == 1 && head.nodes > 1 && all_at_once != Some(head.nodes) {
            return Err(RolloutError::AllAtOnce { nodes: nodes.len() });
        }
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let ids: Vec<NodeId> = nodes.iter().map(|record| record.node).collect();
            check_overlap(tx.before(), &ids)?;
            let mut open = tx.before().bisections().filter(|one| !one.state.is_final());
            if let Some(other) = open.find(|one| one.nodes.iter().any(|id| ids.contains(id))) {
                return Err(RolloutError::BisectionOverlap(other.id));
            }
            tx.remove_surplus_rollouts(nodes.len());
            for record in nodes {
                tx.put_rollout_node(record);
            }
            let detail = format!("rollout {} over {} nodes: started", head.id, head.nodes);
            tx.event(Event::new(now, audit, EventKind::Rollout, detail));
            tx.put_rollout(head.clone());
            Ok::<_, RolloutError>(head)
        });
        let head = stored.await?;
        // What nodes refused in an earlier rollout says nothing about this one.
        let nodes = self.env.store.read(|model| {
            model.rollout_nodes(head.id).keys().copied().collect::<BTreeSet<NodeId>>()
        });
        self.memory.lock().refusals.retain(|id, _| !nodes.contains(id));
        failpoint::point("rollout-stored");
        Ok(head)
    }

    fn select(&self, nodes: &NodeGroup) -> Result<Vec<NodeId>, RolloutError> {
        let site = self.env.site();
        let has_booted = |node: &&Node| node.phase.is_admitted() && node.phase != Phase::Approved;
        let ids = match nodes {
            NodeGroup::Named(hostlist) => self.nodes.resolve_hostlist(hostlist)?,
            NodeGroup::Labelled(selector) => self.env.store.read(|model| {
                let found = model.nodes().filter(has_booted);
                found.filter(|node| selector.matches(&node.labels)).map(|node| node.id).collect()
            }),
            NodeGroup::OfProfile(profile) => {
                check_profile(&site, profile)?;
                self.env.store.read(|model| {
                    let found = model.nodes().filter(has_booted);
                    let has = |node: &&Node| boot::effective_profile(&site, node).name == *profile;
                    found.filter(has).map(|node| node.id).collect()
                })
            }
            NodeGroup::Group(name) => {
                let orders = Orders::of(&self.memory.lock());
                let members = self.env.store.read(|model| {
                    let inventory = self.inventory(model, &site, &orders);
                    let members = inventory.group(name)?;
                    Some(members.into_iter().filter(|id| inventory.exists(*id)).collect())
                });
                members.ok_or_else(|| self.no_group(name))?
            }
        };
        match ids.len() {
            0 => Err(RolloutError::NoNodes),
            count if count > MAX_BULK => Err(RolloutError::TooManyNodes { count, most: MAX_BULK }),
            _ => Ok(ids),
        }
    }

    fn no_group(&self, name: &GroupName) -> RolloutError {
        let site = self.env.site();
        let known: Vec<&str> = site.groups.iter().map(|group| group.name.as_str()).collect();
        RolloutError::NoGroup { group: name.to_string(), known: known.join(", ") }
    }

    /// Refuses a target or a policy that no node can follow.
    fn check(
        &self,
        target: &RolloutTarget,
        policy: &RolloutPolicy,
        ids: &[NodeId],
    ) -> Result<(), RolloutError> {
        let site = self.env.site();
        policy.check().map_err(RolloutError::Policy)?;
        if let RolloutTarget::Profile { profile } = target {
            check_profile(&site, profile)?;
        }
        if let Some(program) = policy.programs().find(|name| !site.programs.contains_key(*name)) {
            return Err(RolloutError::NoProgram { program: program.clone() });
        }
        for group in policy.floors.iter().filter_map(|floor| floor.group.as_ref()) {
            if !site.groups.iter().any(|known| known.name == *group) {
                return Err(self.no_group(group));
            }
        }
        self.env.store.read(|model| check_overlap(model, ids))
    }

    pub(super) fn inventory<'a>(
        &'a self,
        model: &'a Model,
        site: &'a meshd_config::Site,
        orders: &'a Orders,
    ) -> SiteInventory<'a> {
        SiteInventory {
            model,
            site,
            links: &self.links,
            generations: &self.nodes.generations,
            orders,
            rollout: None,
            domain: None,
        }
    }

    /// A random ID that no stored rollout has.
    fn unused_id(&self, model: &Model) -> RolloutId {
        loop {
            let id = RolloutId(self.env.random());
            if model.rollout(id).is_none() {
                return id;
            }
        }
    }

    /// Plans the return of nodes to what they ran before a rollout.
    pub(super) async fn plan_return(
        &self,
        undone: &Rollout,
        previous: BTreeMap<NodeId, NodeSettings>,
        audit: &AuditContext,
    ) -> Result<PlannedRollout, RolloutError> {
        let ids: Vec<NodeId> = previous.keys().copied().collect();
        let mut planned =
            self.plan_nodes(&ids, RolloutTarget::Previous, &undone.policy, audit).await?;
        planned.head.undoes = Some(undone.id);
        for record in &mut planned.nodes {
            record.previous = previous.get(&record.node).cloned();
        }
        Ok(planned)
    }
}

/// Refuses nodes of another rollout that is not finished.
fn check_overlap(model: &Model, ids: &[NodeId]) -> Result<(), RolloutError> {
    let open = model.open_rollouts().count();
    if open >= MAX_OPEN_ROLLOUTS {
        return Err(RolloutError::TooMany { open });
    }
    for node in ids {
        if let Some((rollout, _)) = model.open_rollout_of(*node) {
            return Err(RolloutError::Overlap { node: *node, rollout });
        }
    }
    Ok(())
}
