//! A transaction: reads see its staged changes; all or none are applied.

use super::{
    Model, StoreError,
    journal::{AUDIT, Batch, EVENTS, Log},
    retention::{NewRecords, surplus_tasks},
};
use crate::index::operations::{MAX_REMOVED, NodeOperationKey};
use meshd_model::{
    fleet::{Audit, BootSession, Event, History, IdempotencyRecord, Lease, Node, Phase, Revisions},
    operations::{NodeOperation, Operation, OperationStage},
    work::{ApprovedSlot, SlotId, Vm, task::Task},
};
use meshd_trust::{ApiToken, TokenRecord};
use meshd_types::{BootSessionId, Digest, NodeId, OperationId, ProfileName, SystemUuid, TaskId};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Display, net::Ipv4Addr};

/// The change of one record.
pub(super) enum Change<T> {
    Put(T),
    Remove,
}

impl<T> Change<T> {
    pub(super) fn value(&self) -> Option<&T> {
        match self {
            Change::Put(value) => Some(value),
            Change::Remove => None,
        }
    }
}

/// The changes of a transaction.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) nodes: BTreeMap<NodeId, Change<Node>>,
    pub(super) sessions: BTreeMap<BootSessionId, Change<BootSession>>,
    pub(super) leases: BTreeMap<Ipv4Addr, Change<Lease>>,
    pub(super) tokens: BTreeMap<Digest, Change<TokenRecord>>,
    pub(super) histories: BTreeMap<NodeId, Change<History>>,
    pub(super) revisions: BTreeMap<ProfileName, Change<Revisions>>,
    pub(super) api_tokens: BTreeMap<Digest, Change<ApiToken>>,
    pub(super) idempotency_records: BTreeMap<Digest, Change<IdempotencyRecord>>,
    pub(super) vms: BTreeMap<SystemUuid, Change<Vm>>,
    pub(super) slots: BTreeMap<SlotId, Change<ApprovedSlot>>,
    pub(super) tasks: BTreeMap<TaskId, Change<Task>>,
    pub(super) operations: BTreeMap<OperationId, Change<Operation>>,
    pub(super) node_operations: BTreeMap<NodeOperationKey, Change<NodeOperation>>,
    pub(super) events: Vec<Event>,
    pub(super) audit: Vec<Audit>,
}

/// A transaction.
pub struct Tx<'a> {
    model: &'a Model,
    pub(super) staged: Staged,
    /// Number of added sessions minus removed ones.
    added_sessions: isize,
    next_session_order: u64,
}

impl<'a> Tx<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Tx { model, staged: Staged::default(), added_sessions: 0, next_session_order: model.next_session_order.max(1) }
    }

    pub(super) fn into_staged(self) -> Staged {
        self.staged
    }

    /// The state before this transaction.
    pub fn before(&self) -> &'a Model {
        self.model
    }

    /// A node, as staged or as it was.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.staged.nodes.get(&id).map_or_else(|| self.model.node(id), Change::value)
    }

    /// Stores a node. Removes the least recently seen unapproved node if there are too many.
    pub fn put_node(&mut self, node: Node) {
        if !self.staged.nodes.contains_key(&node.id)
            && let Some(surplus) = self.model.surplus_node(&node)
        {
            self.staged.nodes.insert(surplus, Change::Remove);
            self.staged.histories.insert(surplus, Change::Remove);
        }
        self.staged.nodes.insert(node.id, Change::Put(node));
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
        self.staged.sessions.get(&id).map_or_else(|| self.model.session(id), Change::value)
    }

    /// Stores a boot session. Removes old sessions beyond the bounds.
    pub fn put_session(&mut self, mut session: BootSession) {
        if self.session(session.id).is_none() {
            session.order = self.next_session_order;
            self.next_session_order += 1;
            let goes = |id: &BootSessionId| matches!(self.staged.sessions.get(id), Some(Change::Remove));
            for id in self.model.surplus_sessions(&session, self.added_sessions, goes) {
                self.staged.sessions.insert(id, Change::Remove);
                self.added_sessions -= 1;
            }
            self.added_sessions += 1;
        }
        self.staged.sessions.insert(session.id, Change::Put(session));
    }

    /// Edits a boot session; `None` if there is no such session.
    pub fn edit_session<R>(&mut self, id: BootSessionId, edit: impl FnOnce(&mut BootSession) -> R) -> Option<R> {
        let mut session = self.session(id)?.clone();
        let result = edit(&mut session);
        self.staged.sessions.insert(id, Change::Put(session));
        Some(result)
    }

    /// The lease of an address, as staged or as it was.
    pub fn lease(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.staged.leases.get(&address).map_or_else(|| self.model.lease(address), Change::value)
    }

    /// Stores a lease. It replaces another machine's lease of the address.
    pub fn put_lease(&mut self, lease: Lease) {
        self.staged.leases.insert(lease.address, Change::Put(lease));
    }

    pub fn remove_lease(&mut self, address: Ipv4Addr) {
        self.staged.leases.insert(address, Change::Remove);
    }

    /// The generations of a node, as staged or as they were.
    pub fn history(&self, node: NodeId) -> History {
        self.staged
            .histories
            .get(&node)
            .map_or_else(|| self.model.history(node), Change::value)
            .cloned()
            .unwrap_or_default()
    }

    pub fn put_history(&mut self, node: NodeId, history: History) {
        self.staged.histories.insert(node, Change::Put(history));
    }

    pub fn remove_history(&mut self, node: NodeId) {
        self.staged.histories.insert(node, Change::Remove);
    }

    /// The revisions of a profile, as staged or as they were.
    pub fn revisions(&self, profile: &ProfileName) -> Revisions {
        self.staged
            .revisions
            .get(profile)
            .map_or_else(|| self.model.revisions(profile), Change::value)
            .cloned()
            .unwrap_or_default()
    }

    pub fn put_revisions(&mut self, profile: ProfileName, revisions: Revisions) {
        self.staged.revisions.insert(profile, Change::Put(revisions));
    }

    /// A token, as staged or as it was.
    pub fn token(&self, hash: &Digest) -> Option<&TokenRecord> {
        self.staged.tokens.get(hash).map_or_else(|| self.model.token(hash), Change::value)
    }

    pub fn put_token(&mut self, token: TokenRecord) {
        self.staged.tokens.insert(token.hash, Change::Put(token));
    }

    pub fn remove_token(&mut self, hash: Digest) {
        self.staged.tokens.insert(hash, Change::Remove);
    }

    pub fn put_api_token(&mut self, token: ApiToken) {
        self.staged.api_tokens.insert(token.hash, Change::Put(token));
    }

    pub fn remove_api_token(&mut self, hash: Digest) {
        self.staged.api_tokens.insert(hash, Change::Remove);
    }

    /// Stores an order with an idempotency key. Removes the oldest beyond the bounds.
    pub fn put_idempotency_record(&mut self, key: Digest, record: IdempotencyRecord) {
        if self.model.idempotency_record(&key).is_none() {
            for (key, record) in self.model.surplus_answers() {
                self.staged.idempotency_records.insert(key, Change::Put(record));
            }
            for surplus in self.model.surplus_idempotency_keys(record.at) {
                self.staged.idempotency_records.insert(surplus, Change::Remove);
            }
        }
        self.staged.idempotency_records.insert(key, Change::Put(record));
    }

    /// A task, as staged or as it was.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.staged.tasks.get(&id).map_or_else(|| self.model.task(id), Change::value)
    }

    /// The task that occupies a node, as staged or as it was.
    pub fn task_on(&self, node: NodeId) -> Option<&Task> {
        let staged = self.staged.tasks.values().filter_map(Change::value).find(|task| task.holds(node));
        let before = || self.model.task_on(node).filter(|task| !self.staged.tasks.contains_key(&task.id));
        staged.or_else(before)
    }

    /// Stores a task. Removes the oldest finished tasks beyond the bound.
    pub fn put_task(&mut self, task: Task) {
        if self.task(task.id).is_none() {
            for surplus in surplus_tasks(self.model.tasks.all()) {
                self.staged.tasks.insert(surplus, Change::Remove);
            }
        }
        self.staged.tasks.insert(task.id, Change::Put(task));
    }

    /// The head of an operation, as staged or as it was.
    pub fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.staged.operations.get(&id).map_or_else(|| self.model.operation(id), Change::value)
    }

    /// Heads that this transaction stores.
    pub fn staged_operations(&self) -> impl Iterator<Item = &Operation> {
        self.staged.operations.values().filter_map(Change::value)
    }

    pub fn put_operation(&mut self, head: Operation) {
        self.staged.operations.insert(head.id, Change::Put(head));
    }

    /// The record of a node of an operation, as staged or as it was.
    pub fn node_operation(&self, id: OperationId, node: NodeId) -> Option<&NodeOperation> {
        let staged = self.staged.node_operations.get(&NodeOperationKey::new(id, node));
        staged.map_or_else(|| self.model.node_operation(id, node), Change::value)
    }

    pub fn put_node_operation(&mut self, record: NodeOperation) {
        self.staged.node_operations.insert(NodeOperationKey::of(&record), Change::Put(record));
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

    /// Makes room for an operation with `added` nodes. Removes a bounded number of records, of the oldest finished operations.
    pub fn remove_surplus_operations(&mut self, added: usize) {
        let mut room = MAX_REMOVED;
        for head in self.model.surplus_operations(added) {
            let mut records = self.model.node_operations(head.id);
            for record in records.by_ref().take(room) {
                self.staged.node_operations.insert(NodeOperationKey::of(record), Change::Remove);
                room -= 1;
            }
            if records.next().is_some() {
                let removing = Operation { stage: OperationStage::Removing, ..head.clone() };
                self.staged.operations.insert(head.id, Change::Put(removing));
                return;
            }
            self.staged.operations.insert(head.id, Change::Remove);
        }
    }

    pub fn audit(&mut self, audit: Audit) {
        self.staged.audit.push(audit);
    }

    /// Appends an event. The events of one order also add one line to the audit log.
    pub fn event(&mut self, mut event: Event) {
        event.bound_detail();
        let phase = event.node.and_then(|node| self.node(node)).map(|node| node.phase);
        event.is_unknown = phase.is_some_and(|phase| matches!(phase, Phase::Discovered | Phase::Removed));
        if let Some(audit) = Audit::from_event(&event) {
            let same = |line: &&mut Audit| line.by == audit.by && line.node == audit.node;
            match self.staged.audit.last_mut().filter(same) {
                Some(line) => line.add(&event.detail),
                None => self.staged.audit.push(audit),
            }
        }
        self.staged.events.push(event);
    }
}

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.sessions.is_empty()
            && self.leases.is_empty()
            && self.tokens.is_empty()
            && self.histories.is_empty()
            && self.revisions.is_empty()
            && self.api_tokens.is_empty()
            && self.idempotency_records.is_empty()
            && self.vms.is_empty()
            && self.slots.is_empty()
            && self.tasks.is_empty()
            && self.operations.is_empty()
            && self.node_operations.is_empty()
            && self.events.is_empty()
            && self.audit.is_empty()
    }

    pub(super) fn to_batch(&self, events: &NewRecords<Event>, audit: &NewRecords<Audit>) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        write_all(&mut batch, "node", &self.nodes)?;
        write_all(&mut batch, "session", &self.sessions)?;
        write_all(&mut batch, "lease", &self.leases)?;
        write_all(&mut batch, "token", &self.tokens)?;
        write_all(&mut batch, "history", &self.histories)?;
        write_all(&mut batch, "profile", &self.revisions)?;
        write_all(&mut batch, "api-token", &self.api_tokens)?;
        write_all(&mut batch, "idempotency", &self.idempotency_records)?;
        write_all(&mut batch, "vm", &self.vms)?;
        write_all(&mut batch, "slot", &self.slots)?;
        write_all(&mut batch, "task", &self.tasks)?;
        write_all(&mut batch, "operation", &self.operations)?;
        write_all(&mut batch, "node-operation", &self.node_operations)?;
        write_log(&mut batch, EVENTS, events)?;
        write_log(&mut batch, AUDIT, audit)?;
        Ok(batch)
    }
}

/// Writes new numbered records, and removes evicted ones. A new record that is evicted at once is not written.
fn write_log<T: Serialize>(batch: &mut Batch, log: Log, taken: &NewRecords<T>) -> Result<(), StoreError> {
    let first = taken.all.first().map_or(u64::MAX, |(number, _)| *number);
    for (number, record) in taken.all.iter().filter(|(number, _)| !taken.evicted.contains(number)) {
        batch.insert(log.key(*number), serde_json::to_vec(record).map_err(StoreError::Encode)?);
    }
    taken.evicted.range(..first).for_each(|number| batch.remove(log.key(*number)));
    Ok(())
}

fn write_all<K: Display, T: Serialize>(
    batch: &mut Batch,
    kind: &str,
    changes: &BTreeMap<K, Change<T>>,
) -> Result<(), StoreError> {
    for (key, change) in changes {
        let key = format!("{kind}/{key}").into_bytes();
        match change {
            Change::Put(value) => batch.insert(key, serde_json::to_vec(value).map_err(StoreError::Encode)?),
            Change::Remove => batch.remove(key),
        }
    }
    Ok(())
}
