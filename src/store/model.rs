//! The state in memory, and the indexes that are derived from it.

use super::{
    MAX_SESSIONS, MAX_SESSIONS_PER_MAC,
    tx::{Change, Staged},
};
use crate::fleet::{BootSession, EventSeq, Lease, Node};
use crate::id::{BootSessionId, Digest, MacAddr, NodeId, Timestamp};
use crate::trust::TokenRecord;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Everything but the events.
#[derive(Default)]
pub struct Model {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) sessions: BTreeMap<BootSessionId, BootSession>,
    pub(super) leases: BTreeMap<MacAddr, Lease>,
    pub(super) tokens: BTreeMap<Digest, TokenRecord>,
    /// Derived: the MAC alias table. Two nodes never share a MAC; the first one keeps it.
    aliases: BTreeMap<MacAddr, NodeId>,
    /// Derived: sessions of a MAC, oldest first.
    by_mac: BTreeMap<MacAddr, BTreeSet<(Timestamp, BootSessionId)>>,
    /// Derived: all sessions, oldest first.
    by_age: BTreeSet<(Timestamp, BootSessionId)>,
    /// Derived: the newest session at an address.
    by_address: BTreeMap<Ipv4Addr, BootSessionId>,
    pub(super) next_event: EventSeq,
    pub(super) oldest_event: EventSeq,
}

impl Model {
    /// All nodes, by ID.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// The node that has been seen with this MAC address.
    pub fn node_of_mac(&self, mac: MacAddr) -> Option<&Node> {
        self.aliases.get(&mac).and_then(|id| self.nodes.get(id))
    }

    /// One boot session.
    pub fn session(&self, id: BootSessionId) -> Option<&BootSession> {
        self.sessions.get(&id)
    }

    /// The newest boot session of a MAC address.
    pub fn newest_session(&self, mac: MacAddr) -> Option<&BootSession> {
        let (_, id) = self.by_mac.get(&mac)?.last()?;
        self.sessions.get(id)
    }

    /// The newest boot session of the machine that has this address.
    pub fn session_at(&self, address: Ipv4Addr) -> Option<&BootSession> {
        self.by_address.get(&address).and_then(|id| self.sessions.get(id))
    }

    /// All leases, by MAC address.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// One token, by its hash.
    pub fn token(&self, hash: &Digest) -> Option<&TokenRecord> {
        self.tokens.get(hash)
    }

    /// All tokens.
    pub fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values()
    }

    /// Sessions that have to go when one more of this MAC is kept.
    pub(super) fn surplus_sessions(&self, newcomer: &BootSession) -> Vec<BootSessionId> {
        if self.sessions.contains_key(&newcomer.id) {
            return Vec::new();
        }
        let own = self.by_mac.get(&newcomer.mac);
        let too_many = own.map_or(0, |own| (own.len() + 1).saturating_sub(MAX_SESSIONS_PER_MAC));
        let mut surplus: Vec<_> = own.into_iter().flatten().take(too_many).map(|(_, id)| *id).collect();
        if surplus.is_empty() && self.sessions.len() >= MAX_SESSIONS {
            surplus.extend(self.by_age.first().map(|(_, id)| *id));
        }
        surplus
    }

    pub(super) fn apply(&mut self, staged: Staged) {
        self.next_event.0 += staged.events.len() as u64;
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
        for (mac, change) in staged.leases {
            match change {
                Change::Put(lease) => drop(self.leases.insert(mac, lease)),
                Change::Remove => drop(self.leases.remove(&mac)),
            }
        }
        for (hash, change) in staged.tokens {
            match change {
                Change::Put(token) => drop(self.tokens.insert(hash, token)),
                Change::Remove => drop(self.tokens.remove(&hash)),
            }
        }
    }

    pub(super) fn put_node(&mut self, node: Node) {
        for mac in &node.fingerprint.macs {
            self.aliases.entry(*mac).or_insert(node.id);
        }
        self.nodes.insert(node.id, node);
    }

    fn remove_node(&mut self, id: NodeId) {
        self.nodes.remove(&id);
        self.aliases.retain(|_, owner| *owner != id);
    }

    pub(super) fn put_session(&mut self, session: BootSession) {
        let age = (session.opened_at, session.id);
        if let Some(address) = session.address {
            let newer = self.session_at(address).is_none_or(|other| other.opened_at <= session.opened_at);
            if newer {
                self.by_address.insert(address, session.id);
            }
        }
        self.by_mac.entry(session.mac).or_default().insert(age);
        self.by_age.insert(age);
        self.sessions.insert(session.id, session);
    }

    fn remove_session(&mut self, id: BootSessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let age = (session.opened_at, id);
        self.by_age.remove(&age);
        if let Some(own) = self.by_mac.get_mut(&session.mac) {
            own.remove(&age);
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
