//! The next step of a rollout: changes of its records, and orders to nodes.

use super::{
    Inventory, NodePresent, NodeStage, ProgramPoint, Rollout, RolloutNode, RolloutState, StepTime,
    checkpoint::Action,
    floors::Floors,
    health::NodeContext,
    node_step::{Eligibility, advance_node, begin, eligibility},
};
use crate::{fleet::LabelValue, operations::NodeOrder};
use meshd_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// The result of a step.
#[derive(Debug, Default)]
pub struct RolloutStep {
    /// The head, if it changed.
    pub head: Option<Rollout>,
    /// The records of nodes that changed.
    pub nodes: Vec<RolloutNode>,
    /// Orders to nodes. An order that is lost is part of the next step again.
    pub orders: Vec<(NodeId, NodeOrder)>,
    /// Programs to run, unless they run already.
    pub programs: Vec<(NodeId, ProgramPoint)>,
    /// Why no further node begins at present.
    pub waits: Option<String>,
}

impl RolloutStep {
    fn add(&mut self, node: NodeId, action: Option<Action>) {
        match action {
            Some(Action::Order(order)) => self.orders.push((node, order)),
            Some(Action::Run(point)) => self.programs.push((node, point)),
            None => {}
        }
    }
}

/// Returns the next step of a rollout. The present state of the nodes decides, not earlier events:
/// the same records and the same state give the same step.
pub fn advance(
    rollout: &Rollout,
    nodes: &BTreeMap<NodeId, RolloutNode>,
    inventory: &dyn Inventory,
    time: StepTime,
) -> RolloutStep {
    if rollout.state.is_final() || rollout.frozen {
        return RolloutStep::default();
    }
    let mut work = Progress {
        rollout: rollout.clone(),
        nodes,
        changed: BTreeMap::new(),
        inventory,
        time,
        step: RolloutStep::default(),
    };
    work.advance_active();
    work.check_limits();
    if work.rollout.state == RolloutState::Running {
        work.begin_nodes();
        // A node that stays offline fails while it waits.
        work.check_limits();
    }
    work.check_end();
    let Progress { rollout: head, changed, mut step, .. } = work;
    step.head = (head != *rollout).then_some(head);
    step.nodes = changed.into_values().collect();
    step
}

struct Progress<'a> {
    rollout: Rollout,
    nodes: &'a BTreeMap<NodeId, RolloutNode>,
    /// Records that differ from those in `nodes`: few, because each look at all nodes searches here.
    changed: BTreeMap<NodeId, RolloutNode>,
    inventory: &'a dyn Inventory,
    time: StepTime,
    step: RolloutStep,
}

impl<'a> Progress<'a> {
    /// The records of all nodes, as this step leaves them.
    fn records(&self) -> impl Iterator<Item = &RolloutNode> {
        self.nodes.values().map(|record| self.changed.get(&record.node).unwrap_or(record))
    }

    fn advance_active(&mut self) {
        let mut drains = Vec::new();
        for before in self.nodes.values().filter(|record| record.stage.is_active()) {
            let present = self.inventory.node(before.node);
            let mut record = before.clone();
            let context =
                NodeContext { rollout: &self.rollout, present: present.as_ref(), time: self.time };
            match advance_node(&mut record, &context) {
                Some(Action::Order(order @ NodeOrder::Drain { .. })) => {
                    drains.push((record.node, order));
                }
                action => self.step.add(record.node, action),
            }
            if record != *before {
                self.changed.insert(record.node, record);
            }
        }
        self.order_drains(drains);
    }

    /// Drains nodes that began in an earlier step: a program ran before, the order was lost, or the
    /// node serves and returns to what it ran. Others may have failed since, so the floors decide
    /// again.
    fn order_drains(&mut self, drains: Vec<(NodeId, NodeOrder)>) {
        if drains.is_empty() {
            return;
        }
        let inventory = self.inventory;
        let has_left = |record: &RolloutNode| {
            let is_ordering = || inventory.node(record.node).is_none_or(|node| node.is_ordering);
            record.stage != NodeStage::Draining || record.left || is_ordering()
        };
        let asks: BTreeSet<NodeId> = drains.iter().map(|(id, _)| *id).collect();
        let is_out = |id: NodeId| {
            let record = self.changed.get(&id).or_else(|| self.nodes.get(&id));
            let is_out = |record: &RolloutNode| record.stage.is_active() && has_left(record);
            !asks.contains(&id) && record.is_some_and(is_out)
        };
        let policy = self.rollout.policy.clone();
        let selected = self.nodes.keys().copied();
        let mut floors = Floors::new(&policy.floors, selected, inventory, is_out);
        for (id, order) in drains {
            match inventory.serves(id).then(|| floors.take(id).err()).flatten() {
                Some(fault) => self.step.waits = Some(fault.to_string()),
                None => {
                    let known = self.changed.get(&id).or_else(|| self.nodes.get(&id));
                    if let Some(record) = known.filter(|record| !record.drained).cloned() {
                        self.changed.insert(id, RolloutNode { drained: true, ..record });
                    }
                    self.step.orders.push((id, order));
                }
            }
        }
    }

    /// Ends a rollout with too many failures, or whose time is over.
    fn check_limits(&mut self) {
        if self.rollout.state.is_ending() {
            return;
        }
        let failures = || self.records().filter(|record| record.stage.is_failure());
        let limit = self.rollout.policy.run_timeout(self.rollout.waves);
        let reason = if failures().count() > self.rollout.policy.max_failures as usize {
            failures().next().map(|record| {
                format!("{}: {}", record.name, record.reason.as_deref().unwrap_or("failed"))
            })
        } else if self.time.clock > limit {
            Some(format!("not finished within {} minutes", limit.as_secs() / 60))
        } else {
            None
        };
        if let Some(reason) = reason {
            self.rollout.state = RolloutState::Failing;
            self.rollout.set_reason(&reason);
        }
    }

    /// Begins nodes of the first wave that is not finished.
    fn begin_nodes(&mut self) {
        let open = self.records().filter(|record| !record.stage.is_final());
        let Some(wave) = open.map(|record| record.wave).min() else { return };
        let waiting =
            |record: &&RolloutNode| record.wave == wave && record.stage == NodeStage::Waiting;
        let inventory = self.inventory;
        let mut ready: Vec<(bool, String, NodeId)> = self
            .records()
            .filter(waiting)
            .map(|record| (inventory.serves(record.node), record.name.clone(), record.node))
            .collect();
        if ready.is_empty() {
            return;
        }
        ready.sort();
        let policy = self.rollout.policy.clone();
        if let Some(reason) = policy.closed(self.time.now) {
            self.step.waits = Some(reason);
            return;
        }
        let active: Vec<NodeId> = self
            .records()
            .filter(|record| record.stage.is_active())
            .map(|record| record.node)
            .collect();
        let selected = self.nodes.keys().copied();
        let mut floors = Floors::new(&policy.floors, selected, inventory, |id| {
            active.binary_search(&id).is_ok()
        });
        let mut domain = self.active_domain(&active);
        let mut admitted = self.count_admitted(active.len());
        for (serves, _, id) in ready {
            let present = inventory.node(id);
            let Some(before) = self.nodes.get(&id) else { continue };
            let mut record = before.clone();
            let context =
                NodeContext { rollout: &self.rollout, present: present.as_ref(), time: self.time };
            match (eligibility(&record, &context), &present) {
                (Eligibility::Skipped(reason), _) => {
                    record.finish(NodeStage::Skipped, Some(&reason), self.time.now);
                }
                (Eligibility::Unchanged, _) => {
                    let reason = "the node runs it already";
                    record.finish(NodeStage::Done, Some(reason), self.time.now);
                }
                (Eligibility::Absent, _) => self.wait_for_link(&mut record),
                (Eligibility::Begins, _) if admitted == 0 => {
                    self.step.waits = Some("no node has proved the change yet".to_owned());
                    continue;
                }
                (Eligibility::Begins, Some(present)) => {
                    if domain.as_ref().is_some_and(|domain| *domain != present.domain) {
                        self.step.waits = Some("another failure domain is in progress".to_owned());
                        continue;
                    }
                    if let Some(fault) = serves.then(|| floors.take(id).err()).flatten() {
                        self.step.waits = Some(fault.to_string());
                        continue;
                    }
                    admitted -= 1;
                    begin(&mut record, present, &context);
                    let action = advance_node(&mut record, &context);
                    let drains = matches!(action, Some(Action::Order(NodeOrder::Drain { .. })));
                    record.drained |= drains;
                    self.step.add(id, action);
                    if policy.domain.is_some() {
                        domain = Some(present.domain.clone());
                    }
                }
                _ => {
                    self.step.waits = Some(format!("{} has work or no link", record.name));
                    record.since_ms = 0;
                }
            }
            if record != *before {
                self.changed.insert(id, record);
            }
        }
    }

    /// Returns the number of nodes that may begin. A canary that was left out proves nothing, so
    /// until a node was changed, further waves begin as few nodes as the first.
    fn count_admitted(&self, active: usize) -> usize {
        let proves =
            |record: &RolloutNode| record.stage == NodeStage::Done && record.boot.is_some();
        match self.rollout.policy.canaries as usize {
            0 => usize::MAX,
            _ if self.records().any(proves) => usize::MAX,
            canaries => canaries.saturating_sub(active),
        }
    }

    /// Fails a waiting node that served and has no link for its timeout.
    fn wait_for_link(&mut self, record: &mut RolloutNode) {
        let context = NodeContext { rollout: &self.rollout, present: None, time: self.time };
        if record.since_ms == 0 {
            record.since_ms = context.clock_ms().max(1);
        }
        if context.is_late(record.since_ms) {
            let reason = "it served when the rollout began, and is offline";
            record.finish(NodeStage::Failed, Some(reason), self.time.now);
        } else {
            self.step.waits = Some(format!("{} is offline", record.name));
        }
    }

    /// Returns the failure domain of the nodes in progress; `None` if any may begin.
    fn active_domain(&self, active: &[NodeId]) -> Option<Option<LabelValue>> {
        self.rollout.policy.domain.as_ref()?;
        let present: Option<NodePresent> = active.iter().find_map(|id| self.inventory.node(*id));
        present.map(|present| present.domain)
    }

    fn check_end(&mut self) {
        let is_active = self.records().any(|record| record.stage.is_active());
        let is_waiting = self.records().any(|record| record.stage == NodeStage::Waiting);
        self.rollout.state = match self.rollout.state {
            RolloutState::Aborting if !is_active => RolloutState::Aborted,
            RolloutState::Failing if !is_active => RolloutState::Failed,
            RolloutState::Running | RolloutState::Paused if !is_active && !is_waiting => {
                RolloutState::Done
            }
            state => state,
        };
        if self.rollout.state.is_final() {
            self.rollout.finished_at = Some(self.time.now);
        }
    }
}
