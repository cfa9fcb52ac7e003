//! A transaction: reads see its staged changes; all or none are applied.

use super::{
    Model, StoreError,
    journal::{Batch, Log},
    records::{NodeOperationKey, StagedRecords},
    retention::{NewRecords, surplus_tasks},
};
use crate::index::operations::MAX_REMOVED;
use meshd_model::{
    bisections::Bisection,
    fleet::{Audit, BootSession, Event, History, IdempotencyRecord, Lease, Node, Phase, Revisions},
    operations::{LoginAttempt, MAX_LOGIN_ATTEMPTS, NodeOperation, Operation, OperationStage},
    rollouts::{Rollout, RolloutNode},
    work::task::Task,
};
use meshd_trust::{ApiToken, TokenRecord};
use meshd_types::{
    BisectionId, BootSessionId, Digest, NodeId, OperationId, ProfileName, RolloutId, TaskId,
    Timestamp,
};
use serde::Serialize;
use std::net::Ipv4Addr;

/// Maximum number of stored bisections. Those that are not finished are never removed.
const MAX_BISECTIONS: usize = 100;

/// The changes of a transaction.
pub(super) struct Staged {
    pub(super) records: StagedRecords,
    pub(super) events: Vec<Event>,
    pub(super) audit: Vec<Audit>,
}

/// A transaction.
pub struct Tx<'a> {
    model: &'a Model,
    pub(super) staged: StagedRecords,
    events: Vec<Event>,
    audit: Vec<Audit>,
    /// Number of added sessions minus removed ones.
    added_sessions: isize,
    next_session_order: u64,
}

impl<'a> Tx<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Tx {
            model,
            staged: StagedRecords::default(),
            events: Vec::new(),
            audit: Vec::new(),
            added_sessions: 0,
            next_session_order: model.next_session_order.max(1),
        }
    }

    pub(super) fn into_staged(self) -> Staged {
        Staged { records: self.staged, events: self.events, audit: self.audit }
    }

    /// The state before this transaction.
    pub fn before(&self) -> &'a Model {
        self.model
    }

    /// A node, as staged or as it was.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.staged.nodes.get(&id, || self.model.node(id))
    }

    /// Stores a node. Removes the least recently seen unapproved node if there are too many. A node
    /// that is stored as it was is no change.
    pub fn put_node(&mut self, node: Node) {
        if self.node(node.id) == Some(&node) {
            return;
        }
        if !self.staged.nodes.contains(&node.id)
            && let Some(surplus) = self.model.surplus_node(&node)
        {
            self.staged.nodes.remove(surplus);
            self.staged.histories.remove(surplus);
        }
        self.staged.nodes.put(node.id, node);
    }

    /// Edits a node; `None` if there is no such node.
    pub fn edit_node<R>(&mut self, id: NodeId, edit: impl FnOnce(&mut Node) -> R) -> Option<R> {
        let mut node = self.node(id)?.clone();
        let result = edit(&mut node);
        self.put_node(node);
        Some(result)
    }

    /// A boot session, as staged or as it was.
    pub fn session(&self, id: BootSessionId) -> Option<&BootSession> {
        self.staged.sessions.get(&id, || self.model.session(id))
    }

    /// Stores a boot session. Removes old sessions beyond the bounds.
    pub fn put_session(&mut self, mut session: BootSession) {
        if self.session(session.id).is_none() {
            session.order = self.next_session_order;
            self.next_session_order += 1;
            let goes = |id: &BootSessionId| self.staged.sessions.removes(id);
            for id in self.model.surplus_sessions(&session, self.added_sessions, goes) {
                self.staged.sessions.remove(id);
                self.added_sessions -= 1;
            }
            self.added_sessions += 1;
        }
        self.staged.sessions.put(session.id, session);
    }

    /// Edits a boot session; `None` if there is no such session.
    pub fn edit_session<R>(
        &mut self,
        id: BootSessionId,
        edit: impl FnOnce(&mut BootSession) -> R,
    ) -> Option<R> {
        let mut session = self.session(id)?.clone();
        let result = edit(&mut session);
        self.staged.sessions.put(id, session);
        Some(result)
    }

    /// The lease of an address, as staged or as it was.
    pub fn lease(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.staged.leases.get(&address, || self.model.lease(address))
    }

    /// Stores a lease. It replaces another machine's lease of the address.
    pub fn put_lease(&mut self, lease: Lease) {
        self.staged.leases.put(lease.address, lease);
    }

    pub fn remove_lease(&mut self, address: Ipv4Addr) {
        self.staged.leases.remove(address);
    }

    /// The generations of a node, as staged or as they were.
    pub fn history(&self, node: NodeId) -> History {
        self.staged.histories.get(&node, || self.model.history(node)).cloned().unwrap_or_default()
    }

    pub fn put_history(&mut self, node: NodeId, history: History) {
        self.staged.histories.put(node, history);
    }

    pub fn remove_history(&mut self, node: NodeId) {
        self.staged.histories.remove(node);
    }

    /// The revisions of a profile, as staged or as they were.
    pub fn revisions(&self, profile: &ProfileName) -> Revisions {
        self.staged
            .revisions
            .get(profile, || self.model.revisions(profile))
            .cloned()
            .unwrap_or_default()
    }

    pub fn put_revisions(&mut self, profile: ProfileName, revisions: Revisions) {
        self.staged.revisions.put(profile, revisions);
    }

    /// A token, as staged or as it was.
    pub fn token(&self, hash: &Digest) -> Option<&TokenRecord> {
        self.staged.tokens.get(hash, || self.model.token(hash))
    }

    pub fn put_token(&mut self, token: TokenRecord) {
        self.staged.tokens.put(token.hash, token);
    }

    pub fn remove_token(&mut self, hash: Digest) {
        self.staged.tokens.remove(hash);
    }

    pub fn put_api_token(&mut self, token: ApiToken) {
        self.staged.api_tokens.put(token.hash, token);
    }

    pub fn remove_api_token(&mut self, hash: Digest) {
        self.staged.api_tokens.remove(hash);
    }

    /// Stores an order with an idempotency key. Removes the oldest beyond the bounds.
    pub fn put_idempotency_record(&mut self, key: Digest, record: IdempotencyRecord) {
        if self.model.idempotency_record(&key).is_none() {
            for (key, record) in self.model.surplus_answers() {
                self.staged.idempotency.put(key, record);
            }
            for surplus in self.model.surplus_idempotency_keys(record.at) {
                self.staged.idempotency.remove(surplus);
            }
        }
        self.staged.idempotency.put(key, record);
    }

    /// A task, as staged or as it was.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.staged.tasks.get(&id, || self.model.task(id))
    }

    /// The task that occupies a node, as staged or as it was.
    pub fn task_on(&self, node: NodeId) -> Option<&Task> {
        let staged = self.staged.tasks.records().find(|task| task.holds(node));
        let before =
            || self.model.task_on(node).filter(|task| !self.staged.tasks.contains(&task.id));
        staged.or_else(before)
    }

    /// Stores a task. Removes the oldest finished tasks beyond the bound.
    pub fn put_task(&mut self, task: Task) {
        if self.task(task.id).is_none() {
            for surplus in surplus_tasks(self.model.tasks.all(), task.created_at) {
                self.staged.tasks.remove(surplus);
            }
        }
        self.staged.tasks.put(task.id, task);
    }

    /// The head of an operation, as staged or as it was.
    pub fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.staged.operations.get(&id, || self.model.operation(id))
    }

    /// Heads that this transaction stores.
    pub fn staged_operations(&self) -> impl Iterator<Item = &Operation> {
        self.staged.operations.records()
    }

    pub fn put_operation(&mut self, head: Operation) {
        self.staged.operations.put(head.id, head);
    }

    /// The record of a node of an operation, as staged or as it was.
    pub fn node_operation(&self, id: OperationId, node: NodeId) -> Option<&NodeOperation> {
        let key = NodeOperationKey::new(id, node);
        self.staged.node_operations.get(&key, || self.model.node_operation(id, node))
    }

    pub fn put_node_operation(&mut self, record: NodeOperation) {
        self.staged.node_operations.put(NodeOperationKey::of(&record), record);
    }

    /// Edits the record of a node of an operation; `None` if there is none.
    pub fn edit_node_operation<R>(
        &mut self,
        id: OperationId,
        node: NodeId,
        edit: impl FnOnce(&mut NodeOperation) -> R,
    ) -> Option<R> {
        let mut record = self.node_operation(id, node)?.clone();
        let result = edit(&mut record);
        self.put_node_operation(record);
        Some(result)
    }

    /// Makes room for an operation with `added` nodes. Removes a bounded number of records, of the
    /// oldest finished operations.
    pub fn remove_surplus_operations(&mut self, added: usize) {
        let mut room = MAX_REMOVED;
        for head in self.model.surplus_operations(added) {
            let mut records = self.model.node_operations(head.id);
            for record in records.by_ref().take(room) {
                self.staged.node_operations.remove(NodeOperationKey::of(record));
                room -= 1;
            }
            if records.next().is_some() {
                let removing = Operation { stage: OperationStage::Removing, ..head.clone() };
                self.staged.operations.put(head.id, removing);
                return;
            }
            self.staged.operations.remove(head.id);
        }
    }

    /// A rollout, as staged or as it was.
    pub fn rollout(&self, id: RolloutId) -> Option<&Rollout> {
        self.staged.rollouts.get(&id, || self.model.rollout(id))
    }

    pub fn put_rollout(&mut self, head: Rollout) {
        self.staged.rollouts.put(head.id, head);
    }

    pub fn put_rollout_node(&mut self, record: RolloutNode) {
        self.staged.rollout_nodes.put((&record).into(), record);
    }

    /// Makes room for a rollout with `added` nodes: removes the oldest finished ones.
    pub fn remove_surplus_rollouts(&mut self, added: usize) {
        for id in self.model.surplus_rollouts(added) {
            for record in self.model.rollout_nodes(id).values() {
                self.staged.rollout_nodes.remove(record.into());
            }
            self.staged.rollouts.remove(id);
        }
    }

    /// The tries of a login at a BMC, as staged or as they were.
    pub fn login_attempt(&self, bmc: Digest) -> Option<&LoginAttempt> {
        self.staged.bmc_logins.get(&bmc, || self.model.login_attempt(bmc))
    }

    /// Stores the tries of a login at a BMC. Removes the oldest ones beyond
    /// [`MAX_LOGIN_ATTEMPTS`], and none by its age: the clock may be wrong.
    pub fn put_login_attempt(&mut self, bmc: Digest, attempt: LoginAttempt) {
        let others = self.model.bmc_logins.iter().filter(|(other, _)| **other != bmc);
        let mut others: Vec<(Timestamp, Digest)> =
            others.map(|(other, attempt)| (attempt.at, *other)).collect();
        let surplus = (others.len() + 1).saturating_sub(MAX_LOGIN_ATTEMPTS);
        if surplus > 0 {
            others.sort_unstable();
        }
        for (_, gone) in others.into_iter().take(surplus) {
            self.staged.bmc_logins.remove(gone);
        }
        self.staged.bmc_logins.put(bmc, attempt);
    }

    pub fn remove_login_attempt(&mut self, bmc: Digest) {
        if self.login_attempt(bmc).is_some() {
            self.staged.bmc_logins.remove(bmc);
        }
    }

    /// A bisection, as staged or as it was.
    pub fn bisection(&self, id: BisectionId) -> Option<&Bisection> {
        self.staged.bisections.get(&id, || self.model.bisection(id))
    }

    pub fn put_bisection(&mut self, bisection: Bisection) {
        self.staged.bisections.put(bisection.id, bisection);
    }

    /// Makes room for a bisection: removes the oldest finished ones.
    pub fn remove_surplus_bisections(&mut self) {
        let all = self.model.bisections();
        let mut finished: Vec<_> = all.filter(|one| one.state.is_final()).collect();
        finished.sort_by_key(|one| one.started_at);
        let surplus = (self.model.bisections().count() + 1).saturating_sub(MAX_BISECTIONS);
        for bisection in finished.into_iter().take(surplus) {
            self.staged.bisections.remove(bisection.id);
        }
    }

    pub fn audit(&mut self, audit: Audit) {
        self.audit.push(audit);
    }

    /// Appends an event. The events of one order also add one line to the audit log.
    pub fn event(&mut self, mut event: Event) {
        event.bound_detail();
        let phase = event.node.and_then(|node| self.node(node)).map(|node| node.phase);
        event.is_unknown =
            phase.is_some_and(|phase| matches!(phase, Phase::Discovered | Phase::Removed));
        if let Some(audit) = Audit::from_event(&event) {
            let same = |line: &&mut Audit| line.by == audit.by && line.node == audit.node;
            match self.audit.last_mut().filter(same) {
                Some(line) => line.add(&event.detail),
                None => self.audit.push(audit),
            }
        }
        self.events.push(event);
    }
}

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.records.len() == 0 && self.events.is_empty() && self.audit.is_empty()
    }
}

/// Writes new numbered records, and removes evicted ones. A new record that is evicted at once is
/// not written.
pub(super) fn write_log<T: Serialize>(
    batch: &mut Batch,
    log: Log,
    taken: &NewRecords<T>,
) -> Result<(), StoreError> {
    let first = taken.all.first().map_or(u64::MAX, |(number, _)| *number);
    for (number, record) in taken.all.iter().filter(|(number, _)| !taken.evicted.contains(number)) {
        batch.insert(log.key(*number), serde_json::to_vec(record).map_err(StoreError::Encode)?);
    }
    taken.evicted.range(..first).for_each(|number| batch.remove(log.key(*number)));
    Ok(())
}
