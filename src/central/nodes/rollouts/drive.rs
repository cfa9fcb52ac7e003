//! Advances rollouts, and gives their orders to nodes.

use super::{
    Memory, Rollouts, RunClock,
    present::{Orders, SiteInventory},
};
use crate::{
    environment::alarms::log_failure,
    locks::Leaf,
    nodes::{AcceptedOrder, BulkError, NodeOps, OperateError},
};
use meshd_api::BulkTarget;
use meshd_model::{
    fleet::{Actor, AuditContext, Event, EventKind, Verb},
    operations::NodeOrder,
    rollouts::{
        NodeStage, RefusedOrder, Rollout, RolloutNode, RolloutState, RolloutStep, StepTime, advance,
    },
};
use meshd_store::{Model, StoreError, Tx};
use meshd_trust::Role;
use meshd_types::{Hint as _, NodeId, RolloutId, failpoint};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Time after which a refused order is given again.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Maximum running time that a kill may lose.
const CLOCK_STORED: Duration = Duration::from_secs(30);

impl Rollouts {
    /// Advances all rollouts and bisections. Call it every second.
    pub async fn drive(&self) {
        let open: BTreeSet<RolloutId> =
            self.env.store.read(|model| model.open_rollouts().collect());
        {
            let mut memory = self.memory.lock();
            memory.clocks.retain(|id, _| open.contains(id));
            memory.waits.retain(|id, _| open.contains(id));
            memory.forget_programs(|id| open.contains(&id));
            if open.is_empty() {
                memory.refusals.clear();
            }
        }
        for id in open {
            log_failure(self.step(id).await, "cannot advance a rollout");
        }
        self.drive_bisections().await;
    }

    async fn step(&self, id: RolloutId) -> Result<(), StoreError> {
        let Some(clock) = self.env.store.read(|model| self.advance_clock(model, id)) else {
            return Ok(());
        };
        let orders = Orders::of(&self.memory.lock());
        let plan = |model: &Model| self.next_step(model, &orders, id, clock);
        // Most steps change nothing: they need no transaction.
        let (step, is_clock_old) = self.env.store.read(|model| {
            let stored = model.rollout(id).map(Rollout::clock).unwrap_or_default();
            (plan(model), clock.saturating_sub(stored) >= CLOCK_STORED)
        });
        if step.head.is_none() && step.nodes.is_empty() && !is_clock_old {
            self.finish_step(id, step, &orders);
            return Ok(());
        }
        let stored = self.env.store.commit(|tx| {
            let before = tx.before();
            let mut step = plan(before);
            let Some(old) = before.rollout(id) else { return Ok(step) };
            let mut head = step.head.take().unwrap_or_else(|| old.clone());
            head.clock_ms = u64::try_from(clock.as_millis()).unwrap_or(u64::MAX);
            self.record_events(tx, old, &head, &step.nodes);
            tx.put_rollout(head);
            for record in std::mem::take(&mut step.nodes) {
                tx.put_rollout_node(record);
            }
            Ok::<_, StoreError>(step)
        });
        let step = stored.await?;
        failpoint::point("rollout-step-stored");
        self.finish_step(id, step, &orders);
        Ok(())
    }

    /// Returns the running time of a rollout. A wall clock that jumps does not change it, and it
    /// stands still while no node is in progress and none may begin.
    fn advance_clock(&self, model: &Model, id: RolloutId) -> Option<Duration> {
        let head = model.rollout(id)?;
        let is_active = || model.rollout_nodes(id).values().any(|node| node.stage.is_active());
        let is_closed = || head.policy.closed(self.env.now()).is_some();
        let may_begin = head.state != RolloutState::Paused && !is_closed();
        let runs = may_begin || is_active();
        let now = self.env.monotonic();
        let mut memory = self.memory.lock();
        let clock = memory
            .clocks
            .entry(id)
            .or_insert_with(|| RunClock { read_at: now, clock: head.clock() });
        if runs {
            clock.clock += now.saturating_sub(clock.read_at);
        }
        clock.read_at = now;
        Some(clock.clock)
    }

    fn next_step(
        &self,
        model: &Model,
        orders: &Orders,
        id: RolloutId,
        clock: Duration,
    ) -> RolloutStep {
        let Some(head) = model.rollout(id) else { return RolloutStep::default() };
        let site = self.env.site();
        let inventory = SiteInventory {
            rollout: Some(id),
            domain: head.policy.domain.as_ref(),
            ..self.inventory(model, &site, orders)
        };
        let time = StepTime { now: self.env.now(), clock };
        advance(head, model.rollout_nodes(id), &inventory, time)
    }

    fn record_events(
        &self,
        tx: &mut Tx<'_>,
        before: &Rollout,
        after: &Rollout,
        nodes: &[RolloutNode],
    ) {
        let now = self.env.now();
        let id = after.id;
        let text = |reason: &Option<String>| {
            reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default()
        };
        for record in nodes {
            let is_reported = |stage: NodeStage| stage.is_failure() || stage == NodeStage::Skipped;
            if is_reported(record.stage) {
                let stage = record.stage.as_str();
                let detail = format!("rollout {id}: {stage}{}", text(&record.reason));
                let event = Event::new(now, Actor::Central, EventKind::Rollout, detail);
                tx.event(event.of_node(record.node));
            }
        }
        if before.state != after.state {
            let state = after.state.as_str();
            let detail = format!("rollout {id}: {state}{}", text(&after.reason));
            tx.event(Event::new(now, Actor::Central, EventKind::Rollout, detail));
        }
    }

    /// Gives the orders of a step. Orders of one kind become one operation.
    fn finish_step(&self, id: RolloutId, step: RolloutStep, seen: &Orders) {
        let Some(head) = self.env.store.read(|model| model.rollout(id).cloned()) else { return };
        let mut groups: Vec<(NodeOrder, Vec<NodeId>)> = Vec::new();
        {
            let now = self.env.monotonic();
            let mut memory = self.memory.lock();
            memory.ended.retain(|key, _| key.0 != id || !seen.ended.contains_key(key));
            match step.waits {
                Some(waits) => memory.waits.insert(id, waits),
                None => memory.waits.remove(&id),
            };
            for (node, order) in step.orders {
                let is_early = memory.refusals.get(&node).is_some_and(|(refusal, at)| {
                    refusal.order == order && now.saturating_sub(*at) < RETRY_AFTER
                });
                if is_early || !memory.ordering.insert(node) {
                    continue;
                }
                match groups.iter_mut().find(|(known, _)| *known == order) {
                    Some((_, nodes)) => nodes.push(node),
                    None => groups.push((order, vec![node])),
                }
            }
        }
        self.run_programs(&head, &step.programs);
        for (order, nodes) in groups {
            let audit = order_context(&head, &order);
            let given = GivenOrder {
                order,
                nodes,
                audit,
                ops: self.nodes.clone(),
                memory: self.memory.clone(),
                now: self.env.monotonic(),
            };
            // A node may take long to answer; the other nodes go on.
            tokio::spawn(given.give());
        }
    }
}

/// The audit context of an order of a rollout: the caller is that of the rollout.
fn order_context(head: &Rollout, order: &NodeOrder) -> AuditContext {
    let verb = match order {
        NodeOrder::Drain { .. } => Verb::Drain,
        NodeOrder::Resume => Verb::Resume,
        NodeOrder::AssignProfile { .. } => Verb::AssignProfile,
        NodeOrder::Pin { .. } | NodeOrder::Unpin => Verb::Pin,
        _ => Verb::Reboot,
    };
    let by = &head.by;
    let mut audit = AuditContext::new(by.principal.clone(), verb, by.correlation_id);
    audit.reason = Some(format!("rollout {}", head.id));
    audit
}

/// An order that is being given to nodes.
struct GivenOrder {
    order: NodeOrder,
    nodes: Vec<NodeId>,
    audit: AuditContext,
    ops: Arc<NodeOps>,
    memory: Arc<Leaf<Memory>>,
    /// Monotonic time.
    now: Duration,
}

impl GivenOrder {
    async fn give(self) {
        let targets: Vec<BulkTarget> =
            self.nodes.iter().map(|id| BulkTarget { id: *id, revision: None }).collect();
        let given = self.ops.order(&targets, self.order.clone(), Role::Operator, &self.audit).await;
        let refusals: Vec<(NodeId, String)> = match given {
            Ok(AcceptedOrder { results, .. }) => {
                let failed = |(id, result): (NodeId, Result<_, OperateError>)| {
                    Some((id, refusal(&result.err()?)?))
                };
                results.unwrap_or_default().into_iter().filter_map(failed).collect()
            }
            Err(BulkError::Operate(error)) => {
                let reason = refusal(&error);
                let all = self.nodes.iter().filter_map(|id| Some((*id, reason.clone()?)));
                all.collect()
            }
            Err(error) => {
                tracing::warn!(error = error.message(), "cannot give an order of a rollout");
                Vec::new()
            }
        };
        let mut memory = self.memory.lock();
        for id in &self.nodes {
            memory.ordering.remove(id);
            memory.refusals.remove(id);
        }
        for (id, reason) in refusals {
            let refusal = RefusedOrder { order: self.order.clone(), reason };
            memory.refusals.insert(id, (refusal, self.now));
        }
    }
}

/// The reason of a refusal; `None` if the order may succeed at once when it is repeated.
fn refusal(error: &OperateError) -> Option<String> {
    let is_passing = matches!(
        error,
        OperateError::Busy { .. }
            | OperateError::TooManyOrders { .. }
            | OperateError::Unfinished { .. }
            | OperateError::Store(_)
    );
    (!is_passing).then(|| error.message())
}
