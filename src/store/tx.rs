//! A transaction: reads see its staged changes; all or none are applied.

use super::{
    Model, StoreError,
    journal::{AUDIT, Batch, EVENTS, Log},
    retain::Taken,
};
use meshd_model::{
    fleet::{Audit, BootSession, Event, History, IdempotencyRecord, Lease, Node, Phase, Revisions},
    work::{ApprovedSlot, SlotId, Vm, task::Task},
};
use meshd_trust::{ApiToken, TokenRecord};
use meshd_types::{BootSessionId, Digest, NodeId, ProfileName, SystemUuid, TaskId};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Display, net::Ipv4Addr};

/// What happens to one record.
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

/// Everything that a transaction wants.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) nodes: BTreeMap<NodeId, Change<Node>>,
    pub(super) sessions: BTreeMap<BootSessionId, Change<BootSession>>,
    pub(super) leases: BTreeMap<Ipv4Addr, Change<Lease>>,
    pub(super) tokens: BTreeMap<Digest, Change<TokenRecord>>,
    pub(super) histories: BTreeMap<NodeId, Change<History>>,
    pub(super) revisions: BTreeMap<ProfileName, Change<Revisions>>,
    pub(super) api_tokens: BTreeMap<Digest, Change<ApiToken>>,
    pub(super) asked: BTreeMap<Digest, Change<IdempotencyRecord>>,
    pub(super) vms: BTreeMap<SystemUuid, Change<Vm>>,
    pub(super) slots: BTreeMap<SlotId, Change<ApprovedSlot>>,
    pub(super) tasks: BTreeMap<TaskId, Change<Task>>,
    pub(super) events: Vec<Event>,
    pub(super) audit: Vec<Audit>,
}

/// A change in the making.
pub struct Tx<'a> {
    model: &'a Model,
    pub(super) staged: Staged,
    /// By how many sessions the staged ones outnumber those that go.
    more_sessions: isize,
    /// The order of the next session.
    next_order: u64,
}

impl<'a> Tx<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Tx { model, staged: Staged::default(), more_sessions: 0, next_order: model.next_order.max(1) }
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
        match self.staged.nodes.get(&id) {
            Some(change) => change.value(),
            None => self.model.node(id),
        }
    }

    /// Stores a node. Beyond the bound of those that nobody let in, the one that was seen least recently goes.
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
        match self.staged.sessions.get(&id) {
            Some(change) => change.value(),
            None => self.model.session(id),
        }
    }

    /// Stores a boot session. Old ones of the same MAC address go beyond the bound, and the oldest of all.
    pub fn put_session(&mut self, mut session: BootSession) {
        if self.session(session.id).is_none() {
            session.order = self.next_order;
            self.next_order += 1;
            let goes = |id: &BootSessionId| matches!(self.staged.sessions.get(id), Some(Change::Remove));
            for id in self.model.surplus_sessions(&session, self.more_sessions, goes) {
                self.staged.sessions.insert(id, Change::Remove);
                self.more_sessions -= 1;
            }
            self.more_sessions += 1;
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
        match self.staged.leases.get(&address) {
            Some(change) => change.value(),
            None => self.model.lease(address),
        }
    }

    /// Stores a lease, in place of one that another machine had of this address.
    pub fn put_lease(&mut self, lease: Lease) {
        self.staged.leases.insert(lease.address, Change::Put(lease));
    }

    /// Forgets the lease of an address.
    pub fn remove_lease(&mut self, address: Ipv4Addr) {
        self.staged.leases.insert(address, Change::Remove);
    }

    /// The generations of a node, as staged or as they were.
    pub fn history(&self, node: NodeId) -> History {
        match self.staged.histories.get(&node) {
            Some(change) => change.value().cloned().unwrap_or_default(),
            None => self.model.history(node).cloned().unwrap_or_default(),
        }
    }

    /// Stores the generations of a node.
    pub fn put_history(&mut self, node: NodeId, history: History) {
        self.staged.histories.insert(node, Change::Put(history));
    }

    /// Forgets the generations of a node.
    pub fn remove_history(&mut self, node: NodeId) {
        self.staged.histories.insert(node, Change::Remove);
    }

    /// The revisions of a profile, as staged or as they were.
    pub fn revisions(&self, profile: &ProfileName) -> Revisions {
        match self.staged.revisions.get(profile) {
            Some(change) => change.value().cloned().unwrap_or_default(),
            None => self.model.revisions(profile).cloned().unwrap_or_default(),
        }
    }

    /// Stores the revisions of a profile.
    pub fn put_revisions(&mut self, profile: ProfileName, revisions: Revisions) {
        self.staged.revisions.insert(profile, Change::Put(revisions));
    }

    /// A token, as staged or as it was.
    pub fn token(&self, hash: &Digest) -> Option<&TokenRecord> {
        match self.staged.tokens.get(hash) {
            Some(change) => change.value(),
            None => self.model.token(hash),
        }
    }

    /// Stores a token.
    pub fn put_token(&mut self, token: TokenRecord) {
        self.staged.tokens.insert(token.hash, Change::Put(token));
    }

    /// Forgets a token.
    pub fn remove_token(&mut self, hash: Digest) {
        self.staged.tokens.insert(hash, Change::Remove);
    }

    /// Stores a token of the admin plane.
    pub fn put_api_token(&mut self, token: ApiToken) {
        self.staged.api_tokens.insert(token.hash, Change::Put(token));
    }

    /// Forgets a token of the admin plane.
    pub fn remove_api_token(&mut self, hash: Digest) {
        self.staged.api_tokens.insert(hash, Change::Remove);
    }

    /// Remembers an order that came with a key; the oldest go beyond the bound.
    pub fn put_asked(&mut self, key: Digest, asked: IdempotencyRecord) {
        if self.model.asked(&key).is_none() {
            for (key, asked) in self.model.surplus_answers() {
                self.staged.asked.insert(key, Change::Put(asked));
            }
            for surplus in self.model.surplus_asked(asked.at) {
                self.staged.asked.insert(surplus, Change::Remove);
            }
        }
        self.staged.asked.insert(key, Change::Put(asked));
    }

    /// A task, as staged or as it was.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        match self.staged.tasks.get(&id) {
            Some(change) => change.value(),
            None => self.model.task(id),
        }
    }

    /// The task that has this node for itself, as staged or as it was.
    pub fn task_on(&self, node: NodeId) -> Option<&Task> {
        let staged = self.staged.tasks.values().filter_map(Change::value).find(|task| task.holds(node));
        let before = || self.model.task_on(node).filter(|task| !self.staged.tasks.contains_key(&task.id));
        staged.or_else(before)
    }

    /// Stores a task; the oldest that are over go beyond the bound.
    pub fn put_task(&mut self, task: Task) {
        if self.task(task.id).is_none() {
            for surplus in self.model.tasks.surplus() {
                self.staged.tasks.insert(surplus, Change::Remove);
            }
        }
        self.staged.tasks.insert(task.id, Change::Put(task));
    }

    /// Appends to the audit log.
    pub fn audit(&mut self, audit: Audit) {
        self.staged.audit.push(audit);
    }

    /// Appends to the record of events; and to the audit log what came of an order, one line for all events of it.
    pub fn event(&mut self, mut event: Event) {
        event.bound_detail();
        let phase = event.node.and_then(|node| self.node(node)).map(|node| node.phase);
        event.is_unknown = phase.is_some_and(|phase| matches!(phase, Phase::Discovered | Phase::Removed));
        if let Some(audit) = Audit::of(&event) {
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
            && self.asked.is_empty()
            && self.vms.is_empty()
            && self.slots.is_empty()
            && self.tasks.is_empty()
            && self.events.is_empty()
            && self.audit.is_empty()
    }

    /// One batch: all of it happens, or nothing.
    pub(super) fn to_batch(&self, events: &Taken<Event>, audit: &Taken<Audit>) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        write_all(&mut batch, "node", &self.nodes)?;
        write_all(&mut batch, "session", &self.sessions)?;
        write_all(&mut batch, "lease", &self.leases)?;
        write_all(&mut batch, "token", &self.tokens)?;
        write_all(&mut batch, "history", &self.histories)?;
        write_all(&mut batch, "profile", &self.revisions)?;
        write_all(&mut batch, "api-token", &self.api_tokens)?;
        write_all(&mut batch, "asked", &self.asked)?;
        write_all(&mut batch, "vm", &self.vms)?;
        write_all(&mut batch, "slot", &self.slots)?;
        write_all(&mut batch, "job", &self.tasks)?;
        write_log(&mut batch, EVENTS, events)?;
        write_log(&mut batch, AUDIT, audit)?;
        Ok(batch)
    }
}

/// Writes numbered records, and removes those that go for them. What went before it was written is not written.
fn write_log<T: Serialize>(batch: &mut Batch, log: Log, taken: &Taken<T>) -> Result<(), StoreError> {
    let first = taken.all.first().map_or(u64::MAX, |(number, _)| *number);
    for (number, record) in taken.all.iter().filter(|(number, _)| !taken.gone.contains(number)) {
        batch.insert(log.key(*number), serde_json::to_vec(record).map_err(StoreError::Encode)?);
    }
    taken.gone.range(..first).for_each(|number| batch.remove(log.key(*number)));
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
