//! The model: all state in memory, with its indexes.

use super::{
    MAX_UNKNOWN_NODES,
    retain::Retained,
    tx::{Change, Staged},
};
use crate::index::{
    sessions::{Age, age},
    tasks::Tasks,
    vm_index::VmIndex,
};
use meshd_model::fleet::{Audit, BootSession, Event, History, IdempotencyRecord, Lease, Node, Phase, Revisions};
use meshd_trust::{ApiToken, TokenRecord};
use meshd_types::{BootSessionId, Digest, MacAddr, NodeId, ProfileName, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// Nodes that somebody on this thread looked at.
    pub static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Everything but events and audit log.
#[derive(Default)]
pub struct Model {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) sessions: BTreeMap<BootSessionId, BootSession>,
    pub(super) leases: BTreeMap<Ipv4Addr, Lease>,
    pub(super) tokens: BTreeMap<Digest, TokenRecord>,
    pub(super) histories: BTreeMap<NodeId, History>,
    pub(super) revisions: BTreeMap<ProfileName, Revisions>,
    pub(super) api_tokens: BTreeMap<Digest, ApiToken>,
    pub(super) asked: BTreeMap<Digest, IdempotencyRecord>,
    pub(super) work: VmIndex,
    pub(super) tasks: Tasks,
    /// Derived: the MAC alias table. Two nodes never share a MAC; the first one keeps it. A removed one has none.
    aliases: BTreeMap<MacAddr, NodeId>,
    /// Derived: which node stands for one whose hardware is gone.
    heirs: BTreeMap<NodeId, NodeId>,
    /// Derived: tokens of a node.
    by_node: BTreeMap<NodeId, BTreeSet<Digest>>,
    /// Derived: sessions of a MAC, oldest first.
    pub(super) by_mac: BTreeMap<MacAddr, Vec<Age>>,
    /// Derived: the order that the next session has.
    pub(super) next_order: u64,
    /// Derived: all sessions, oldest first.
    pub(super) by_age: BTreeSet<Age>,
    /// Derived: those of machines that nobody let in.
    pub(super) strangers: BTreeSet<Age>,
    /// Derived: those of them that came no further than DHCP.
    pub(super) idle: BTreeSet<Age>,
    /// Derived: nodes that nobody let in, and removed ones, the one first that was seen least recently.
    unknown: BTreeSet<(Timestamp, NodeId)>,
    /// Derived: the newest session at an address.
    by_address: BTreeMap<Ipv4Addr, BootSessionId>,
    /// Derived: which events are kept.
    pub(super) event_log: Retained<Event>,
    /// Derived: which audit lines are kept.
    pub(super) audit_log: Retained<Audit>,
}

impl Model {
    /// All nodes, by ID.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        let nodes = self.nodes.values();
        #[cfg(any(test, feature = "testing"))]
        let nodes = nodes.inspect(|_| LOOKED_AT.with(|count| count.set(count.get() + 1)));
        nodes
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        #[cfg(any(test, feature = "testing"))]
        LOOKED_AT.with(|count| count.set(count.get() + 1));
        self.nodes.get(&id)
    }

    /// The node that has been seen with this MAC address.
    pub fn node_of_mac(&self, mac: MacAddr) -> Option<&Node> {
        self.aliases.get(&mac).and_then(|id| self.nodes.get(id))
    }

    /// The node that this ID of the site means now: the one that stands for it, else the one that has it.
    pub fn standing_for(&self, id: NodeId) -> Option<&Node> {
        self.node(self.heirs.get(&id).copied().unwrap_or(id))
    }

    /// One boot session.
    pub fn session(&self, id: BootSessionId) -> Option<&BootSession> {
        self.sessions.get(&id)
    }

    /// The newest boot session of a MAC address.
    pub fn newest_session(&self, mac: MacAddr) -> Option<&BootSession> {
        let (.., id) = self.by_mac.get(&mac)?.last()?;
        self.sessions.get(id)
    }

    /// All boot sessions of a MAC address that are kept, newest first.
    pub fn sessions_of(&self, mac: MacAddr) -> impl Iterator<Item = &BootSession> {
        let own = self.by_mac.get(&mac).into_iter().flatten().rev();
        own.filter_map(|(.., id)| self.sessions.get(id))
    }

    /// The newest boot session of every MAC address.
    pub fn newest_sessions(&self) -> impl Iterator<Item = &BootSession> {
        let newest = self.by_mac.values().filter_map(|own| own.last());
        newest.filter_map(|(.., id)| self.sessions.get(id))
    }

    /// All boot sessions that are kept.
    pub fn session_ids(&self) -> impl Iterator<Item = BootSessionId> + '_ {
        self.sessions.keys().copied()
    }

    /// How many boot sessions are kept.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The boots of a node by any of its network cards, newest first: also one that did not get so far as to say which node
    /// it is.
    pub fn boots_of(&self, node: &Node) -> Vec<&BootSession> {
        let boots = node.fingerprint.macs.iter().flat_map(|mac| self.sessions_of(*mac));
        let mut boots: Vec<_> = boots.filter(|boot| boot.node.is_none_or(|of| of == node.id)).collect();
        boots.sort_unstable_by_key(|boot| std::cmp::Reverse(age(boot)));
        boots
    }

    /// The boot that a node's phase speaks of: its newest that came to the script step. One that has only begun does not make
    /// a node that is online look as if this boot had brought it there.
    pub fn boot_of(&self, node: &Node) -> Option<&BootSession> {
        let decided = node.boot.and_then(|id| self.session(id));
        decided.or_else(|| self.boots_of(node).first().copied())
    }

    /// The newest boot session of the machine that has this address.
    pub fn session_at(&self, address: Ipv4Addr) -> Option<&BootSession> {
        self.by_address.get(&address).and_then(|id| self.sessions.get(id))
    }

    /// All leases, by address: no two share one. A card has one in each network that it was in.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// The lease of an address.
    pub fn lease(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.leases.get(&address)
    }

    /// The generations that a node was given, if it ever was.
    pub fn history(&self, node: NodeId) -> Option<&History> {
        self.histories.get(&node)
    }

    /// The revisions of a profile, if there was ever one.
    pub fn revisions(&self, profile: &ProfileName) -> Option<&Revisions> {
        self.revisions.get(profile)
    }

    /// The revisions of all profiles that there ever were.
    pub fn all_revisions(&self) -> impl Iterator<Item = (&ProfileName, &Revisions)> {
        self.revisions.iter()
    }

    /// How many nodes there are that nobody let in.
    pub fn unknown_count(&self) -> usize {
        self.unknown.len()
    }

    /// How many nodes there are that somebody, or the site, let in.
    pub fn let_in_count(&self) -> usize {
        self.nodes.len() - self.unknown.len()
    }

    /// One token, by its hash.
    pub fn token(&self, hash: &Digest) -> Option<&TokenRecord> {
        self.tokens.get(hash)
    }

    /// All tokens.
    pub fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values()
    }

    /// All tokens of a node.
    pub fn tokens_of(&self, node: NodeId) -> impl Iterator<Item = &TokenRecord> {
        self.by_node.get(&node).into_iter().flatten().filter_map(|hash| self.tokens.get(hash))
    }

    /// All tokens of the admin plane.
    pub fn api_tokens(&self) -> impl Iterator<Item = &ApiToken> {
        self.api_tokens.values()
    }

    /// A token of the admin plane, by the hash of its text.
    pub fn api_token(&self, hash: &Digest) -> Option<&ApiToken> {
        self.api_tokens.get(hash)
    }

    /// An order that came with a key.
    pub fn asked(&self, key: &Digest) -> Option<&IdempotencyRecord> {
        self.asked.get(key)
    }

    /// The node that has to go when one more is kept that nobody let in.
    pub(super) fn surplus_node(&self, newcomer: &Node) -> Option<NodeId> {
        let is_new = newcomer.phase == Phase::Discovered && !self.nodes.contains_key(&newcomer.id);
        let full = is_new && self.unknown.len() >= MAX_UNKNOWN_NODES;
        self.unknown.first().filter(|_| full).map(|(_, id)| *id)
    }

    pub(super) fn apply(&mut self, staged: Staged) {
        // A MAC address may move from one node to another in one change.
        staged.nodes.keys().for_each(|id| self.unname(*id));
        for (id, change) in staged.nodes {
            match change {
                Change::Put(node) => self.put_node(node),
                Change::Remove => self.remove_node(id),
            }
        }
        for (id, change) in staged.sessions {
            match change {
                Change::Put(session) => self.put_session(session),
                Change::Remove => self.remove_session(id),
            }
        }
        for (address, change) in staged.leases {
            match change {
                Change::Put(lease) => self.put_lease(lease),
                Change::Remove => self.remove_lease(address),
            }
        }
        for (node, change) in staged.histories {
            match change {
                Change::Put(history) => drop(self.histories.insert(node, history)),
                Change::Remove => drop(self.histories.remove(&node)),
            }
        }
        for (profile, change) in staged.revisions {
            match change {
                Change::Put(revisions) => drop(self.revisions.insert(profile, revisions)),
                Change::Remove => drop(self.revisions.remove(&profile)),
            }
        }
        for (hash, change) in staged.api_tokens {
            match change {
                Change::Put(token) => drop(self.api_tokens.insert(hash, token)),
                Change::Remove => drop(self.api_tokens.remove(&hash)),
            }
        }
        for (key, change) in staged.asked {
            match change {
                Change::Put(asked) => drop(self.asked.insert(key, asked)),
                Change::Remove => drop(self.asked.remove(&key)),
            }
        }
        self.tasks.apply(staged.tasks);
        for (hash, change) in staged.tokens {
            match change {
                Change::Put(token) => self.put_token(token),
                Change::Remove => self.remove_token(hash),
            }
        }
        self.work.apply(staged.vms, staged.slots);
    }

    pub(super) fn put_node(&mut self, node: Node) {
        self.unname(node.id);
        if let Some(old) = self.nodes.get(&node.id) {
            self.unknown.remove(&(old.last_seen, old.id));
        }
        if matches!(node.phase, Phase::Discovered | Phase::Removed) {
            self.unknown.insert((node.last_seen, node.id));
        }
        if node.phase != Phase::Removed {
            for mac in &node.fingerprint.macs {
                self.aliases.entry(*mac).or_insert(node.id);
            }
            self.heirs.extend(node.former.iter().map(|former| (*former, node.id)));
        }
        self.work.closed.put(&node);
        self.nodes.insert(node.id, node);
    }

    fn remove_node(&mut self, id: NodeId) {
        self.unname(id);
        self.work.closed.remove(id);
        let Some(node) = self.nodes.remove(&id) else { return };
        self.unknown.remove(&(node.last_seen, id));
    }

    /// Takes a node out of the tables that find nodes by something else than their ID.
    fn unname(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else { return };
        for mac in &node.fingerprint.macs {
            if self.aliases.get(mac) == Some(&id) {
                self.aliases.remove(mac);
            }
        }
        for former in &node.former {
            if self.heirs.get(former) == Some(&id) {
                self.heirs.remove(former);
            }
        }
    }

    pub(super) fn put_token(&mut self, token: TokenRecord) {
        self.by_node.entry(token.node).or_default().insert(token.hash);
        self.tokens.insert(token.hash, token);
    }

    fn remove_token(&mut self, hash: Digest) {
        let Some(token) = self.tokens.remove(&hash) else { return };
        if let Some(own) = self.by_node.get_mut(&token.node) {
            own.remove(&hash);
            if own.is_empty() {
                self.by_node.remove(&token.node);
            }
        }
    }

    pub(super) fn put_session(&mut self, session: BootSession) {
        let age = age(&session);
        if let Some(address) = session.address {
            let newer = self.session_at(address).is_none_or(|other| crate::index::sessions::age(other) <= age);
            if newer {
                self.by_address.insert(address, session.id);
            }
        }
        let own = self.by_mac.entry(session.mac).or_insert_with(|| Vec::with_capacity(1));
        if let Err(place) = own.binary_search(&age) {
            own.insert(place, age);
        }
        self.by_age.insert(age);
        self.next_order = self.next_order.max(session.order + 1);
        let (is_stranger, is_idle) = self.is_stranger(&session);
        for (set, is_in) in [(&mut self.strangers, is_stranger), (&mut self.idle, is_idle)] {
            if is_in {
                set.insert(age)
            } else {
                set.remove(&age)
            };
        }
        self.sessions.insert(session.id, session);
    }

    fn remove_session(&mut self, id: BootSessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let age = age(&session);
        self.by_age.remove(&age);
        self.strangers.remove(&age);
        self.idle.remove(&age);
        if let Some(own) = self.by_mac.get_mut(&session.mac) {
            own.retain(|other| *other != age);
            if own.is_empty() {
                self.by_mac.remove(&session.mac);
            }
        }
        if let Some(address) = session.address
            && self.by_address.get(&address) == Some(&id)
        {
            self.by_address.remove(&address);
        }
    }
}
