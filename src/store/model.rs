//! The model: all state in memory, with its indexes.

use super::{
    MAX_UNKNOWN_NODES,
    records::{RecordIndex, StagedRecords},
    retention::{CLOCK_TOLERANCE, Retained},
};
use crate::index::{
    dhcp_record_changes::DhcpRecordChange,
    expected_machines::ExpectedMachines,
    operations::Operations,
    rollouts::Rollouts,
    sessions::{Age, age},
    tasks::Tasks,
    vm_index::VmIndex,
};
use meshd_model::{
    bisections::Bisection,
    fleet::{Audit, BootSession, Event, History, IdempotencyRecord, Lease, Node, Phase, Revisions},
    operations::LoginAttempt,
};
use meshd_trust::{ApiToken, TokenRecord};
use meshd_types::{BisectionId, BootSessionId, Digest, MacAddr, NodeId, ProfileName, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// Number of node records that this thread read.
    pub static NODE_READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// Number of records of operations that each commit of this thread changed.
    pub static OPERATION_CHANGES: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
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
    pub(super) idempotency_records: BTreeMap<Digest, IdempotencyRecord>,
    pub(super) work: VmIndex,
    pub(super) tasks: Tasks,
    pub(super) operations: Operations,
    pub(super) rollouts: Rollouts,
    pub(super) bisections: BTreeMap<BisectionId, Bisection>,
    pub(super) bmc_logins: BTreeMap<Digest, LoginAttempt>,
    pub(super) expected: ExpectedMachines,
    /// Derived: the MAC alias table. A MAC belongs to one node, the first one. A removed node has
    /// none.
    aliases: BTreeMap<MacAddr, NodeId>,
    /// Derived: former node IDs and the node that replaced each.
    replacements: BTreeMap<NodeId, NodeId>,
    tokens_by_node: BTreeMap<NodeId, BTreeSet<Digest>>,
    /// Derived: sessions of a MAC, oldest first.
    pub(super) sessions_by_mac: BTreeMap<MacAddr, Vec<Age>>,
    /// Derived: the sequence number of the next session.
    pub(super) next_session_order: u64,
    /// Derived: all sessions, oldest first.
    pub(super) sessions_by_age: BTreeSet<Age>,
    /// Derived: sessions of unapproved machines.
    pub(super) unapproved_sessions: BTreeSet<Age>,
    /// Derived: sessions of unapproved machines that reached DHCP only.
    pub(super) dhcp_only_sessions: BTreeSet<Age>,
    /// Derived: unapproved and removed nodes, the least recently seen first.
    unapproved_nodes: BTreeSet<(Timestamp, NodeId)>,
    /// Derived: the newest session at an address.
    by_address: BTreeMap<Ipv4Addr, BootSessionId>,
    /// Derived: retention of events.
    pub(super) event_log: Retained<Event>,
    /// Derived: retention of audit lines.
    pub(super) audit_log: Retained<Audit>,
}

impl Model {
    /// All nodes, by ID.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        let nodes = self.nodes.values();
        #[cfg(any(test, feature = "testing"))]
        let nodes = nodes.inspect(|_| NODE_READS.with(|count| count.set(count.get() + 1)));
        nodes
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        #[cfg(any(test, feature = "testing"))]
        NODE_READS.with(|count| count.set(count.get() + 1));
        self.nodes.get(&id)
    }

    /// The node that has been seen with this MAC address. Its own report is no proof.
    pub fn node_of_mac(&self, mac: MacAddr) -> Option<&Node> {
        self.aliases.get(&mac).and_then(|id| self.nodes.get(id))
    }

    /// The node of an ID in the site file: the node that replaced it, else the node with this ID.
    pub fn current_node(&self, id: NodeId) -> Option<&Node> {
        self.node(self.replacements.get(&id).copied().unwrap_or(id))
    }

    pub fn session(&self, id: BootSessionId) -> Option<&BootSession> {
        self.sessions.get(&id)
    }

    /// The newest boot session of a MAC address.
    pub fn newest_session(&self, mac: MacAddr) -> Option<&BootSession> {
        let (.., id) = self.sessions_by_mac.get(&mac)?.last()?;
        self.sessions.get(id)
    }

    /// All boot sessions of a MAC address, newest first.
    pub fn sessions_of(&self, mac: MacAddr) -> impl Iterator<Item = &BootSession> {
        let own = self.sessions_by_mac.get(&mac).into_iter().flatten().rev();
        own.filter_map(|(.., id)| self.sessions.get(id))
    }

    /// The newest boot session of every MAC address.
    pub fn newest_sessions(&self) -> impl Iterator<Item = &BootSession> {
        let newest = self.sessions_by_mac.values().filter_map(|own| own.last());
        newest.filter_map(|(.., id)| self.sessions.get(id))
    }

    pub fn session_ids(&self) -> impl Iterator<Item = BootSessionId> + '_ {
        self.sessions.keys().copied()
    }

    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The boots of a node from any of its NICs, newest first. A boot before its script counts too.
    pub fn boots_of(&self, node: &Node) -> Vec<&BootSession> {
        let boots = node.seen_nics().flat_map(|mac| self.sessions_of(*mac));
        let mut boots: Vec<_> =
            boots.filter(|boot| boot.node.is_none_or(|of| of == node.id)).collect();
        boots.sort_unstable_by_key(|boot| std::cmp::Reverse(age(boot)));
        boots
    }

    /// The newest boot of a node that has begun. A node that loads a warm boot still runs its former
    /// one.
    pub fn begun_boot_of(&self, node: &Node) -> Option<&BootSession> {
        self.boots_of(node).into_iter().find(|boot| !boot.is_staged())
    }

    /// The boot that a node's phase describes: the newest one that reached the script step. A boot
    /// that has only begun must not appear as the boot of an online node.
    pub fn boot_of(&self, node: &Node) -> Option<&BootSession> {
        let decided = node.boot.and_then(|id| self.session(id));
        decided.or_else(|| self.boots_of(node).first().copied())
    }

    /// The newest boot session at an address.
    pub fn session_at(&self, address: Ipv4Addr) -> Option<&BootSession> {
        self.by_address.get(&address).and_then(|id| self.sessions.get(id))
    }

    /// All leases, by address. A NIC has one in each of its networks.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    pub fn lease(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.leases.get(&address)
    }

    /// The tries of a login at a BMC, by the digest of its host and port.
    pub fn login_attempt(&self, bmc: Digest) -> Option<&LoginAttempt> {
        self.bmc_logins.get(&bmc)
    }

    /// The generations of a node.
    pub fn history(&self, node: NodeId) -> Option<&History> {
        self.histories.get(&node)
    }

    pub fn revisions(&self, profile: &ProfileName) -> Option<&Revisions> {
        self.revisions.get(profile)
    }

    /// The revisions of all profiles, deleted ones too.
    pub fn all_revisions(&self) -> impl Iterator<Item = (&ProfileName, &Revisions)> {
        self.revisions.iter()
    }

    /// All bisections, by ID.
    pub fn bisections(&self) -> impl Iterator<Item = &Bisection> {
        self.bisections.values()
    }

    pub fn bisection(&self, id: BisectionId) -> Option<&Bisection> {
        self.bisections.get(&id)
    }

    /// Number of unapproved and removed nodes.
    pub fn unknown_count(&self) -> usize {
        self.unapproved_nodes.len()
    }

    /// Number of approved nodes.
    pub fn approved_count(&self) -> usize {
        self.nodes.len() - self.unapproved_nodes.len()
    }

    pub fn token(&self, hash: &Digest) -> Option<&TokenRecord> {
        self.tokens.get(hash)
    }

    pub fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values()
    }

    pub fn tokens_of(&self, node: NodeId) -> impl Iterator<Item = &TokenRecord> {
        self.tokens_by_node
            .get(&node)
            .into_iter()
            .flatten()
            .filter_map(|hash| self.tokens.get(hash))
    }

    pub fn api_tokens(&self) -> impl Iterator<Item = &ApiToken> {
        self.api_tokens.values()
    }

    /// A token of the admin API, by the hash of its text.
    pub fn api_token(&self, hash: &Digest) -> Option<&ApiToken> {
        self.api_tokens.get(hash)
    }

    /// An order with an idempotency key.
    pub fn idempotency_record(&self, key: &Digest) -> Option<&IdempotencyRecord> {
        self.idempotency_records.get(key)
    }

    /// The node to remove when a new unapproved node is stored.
    pub(super) fn surplus_node(&self, newcomer: &Node) -> Option<NodeId> {
        let is_new = newcomer.phase == Phase::Discovered && !self.nodes.contains_key(&newcomer.id);
        if !is_new || self.unapproved_nodes.len() < MAX_UNKNOWN_NODES {
            return None;
        }
        // A machine that was seen by a clock in the future would be the latest one for ever.
        let latest = newcomer.last_seen.after(CLOCK_TOLERANCE);
        let ahead = self.unapproved_nodes.last().filter(|(seen, _)| *seen > latest);
        ahead.or(self.unapproved_nodes.first()).map(|(_, id)| *id)
    }

    /// Applies the changes of one transaction. Returns the changes that undo them.
    pub(super) fn apply(&mut self, records: StagedRecords) -> StagedRecords {
        #[cfg(any(test, feature = "testing"))]
        OPERATION_CHANGES.with_borrow_mut(|all| all.push(records.node_operations.len()));
        // A MAC address may move from one node to another in one change.
        records.nodes.keys().for_each(|id| self.remove_aliases(*id));
        records.apply(self)
    }

    /// Removes the MAC addresses and former IDs of a node from the indexes.
    fn remove_aliases(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else { return };
        for mac in &node.fingerprint.macs {
            if self.aliases.get(mac) == Some(&id) {
                self.aliases.remove(mac);
            }
        }
        for former in &node.former {
            if self.replacements.get(former) == Some(&id) {
                self.replacements.remove(former);
            }
        }
    }
}

impl RecordIndex<NodeId, Node> for Model {
    fn put_record(&mut self, id: NodeId, node: Node) -> Option<Node> {
        self.remove_aliases(id);
        if let Some(old) = self.nodes.get(&id) {
            self.unapproved_nodes.remove(&(old.last_seen, id));
        }
        if matches!(node.phase, Phase::Discovered | Phase::Removed) {
            self.unapproved_nodes.insert((node.last_seen, id));
        }
        if node.phase != Phase::Removed {
            for mac in node.seen_nics() {
                self.aliases.entry(*mac).or_insert(id);
            }
            self.replacements.extend(node.former.iter().map(|former| (*former, id)));
        }
        self.work.unavailable.put(&node);
        self.work.nics.changes.push_node(&node);
        let before = self.nodes.insert(id, node);
        before.iter().for_each(|before| self.work.nics.changes.push_node(before));
        before
    }

    fn remove_record(&mut self, id: &NodeId) -> Option<Node> {
        self.remove_aliases(*id);
        self.work.unavailable.remove(*id);
        let node = self.nodes.remove(id)?;
        self.work.nics.changes.push_node(&node);
        self.unapproved_nodes.remove(&(node.last_seen, *id));
        Some(node)
    }
}

impl RecordIndex<Digest, TokenRecord> for Model {
    fn put_record(&mut self, hash: Digest, token: TokenRecord) -> Option<TokenRecord> {
        self.tokens_by_node.entry(token.node).or_default().insert(hash);
        self.tokens.insert(hash, token)
    }

    fn remove_record(&mut self, hash: &Digest) -> Option<TokenRecord> {
        let token = self.tokens.remove(hash)?;
        if let Some(own) = self.tokens_by_node.get_mut(&token.node) {
            own.remove(hash);
            if own.is_empty() {
                self.tokens_by_node.remove(&token.node);
            }
        }
        Some(token)
    }
}

impl RecordIndex<BootSessionId, BootSession> for Model {
    fn put_record(&mut self, id: BootSessionId, session: BootSession) -> Option<BootSession> {
        let age = age(&session);
        self.work.nics.changes.push(DhcpRecordChange::Nic(session.mac));
        if let Some(address) = session.address {
            let newer = self
                .session_at(address)
                .is_none_or(|other| crate::index::sessions::age(other) <= age);
            if newer {
                self.by_address.insert(address, id);
            }
        }
        let own = self.sessions_by_mac.entry(session.mac).or_insert_with(|| Vec::with_capacity(1));
        if let Err(index) = own.binary_search(&age) {
            own.insert(index, age);
        }
        self.sessions_by_age.insert(age);
        self.next_session_order = self.next_session_order.max(session.order + 1);
        let (unapproved_kind, is_dhcp_only) = self.unapproved_kind(&session);
        for (set, is_in) in [
            (&mut self.unapproved_sessions, unapproved_kind),
            (&mut self.dhcp_only_sessions, is_dhcp_only),
        ] {
            if is_in {
                set.insert(age)
            } else {
                set.remove(&age)
            };
        }
        self.sessions.insert(id, session)
    }

    fn remove_record(&mut self, id: &BootSessionId) -> Option<BootSession> {
        let session = self.sessions.remove(id)?;
        self.work.nics.changes.push(DhcpRecordChange::Nic(session.mac));
        let age = age(&session);
        self.sessions_by_age.remove(&age);
        self.unapproved_sessions.remove(&age);
        self.dhcp_only_sessions.remove(&age);
        if let Some(own) = self.sessions_by_mac.get_mut(&session.mac) {
            own.retain(|other| *other != age);
            if own.is_empty() {
                self.sessions_by_mac.remove(&session.mac);
            }
        }
        if let Some(address) = session.address
            && self.by_address.get(&address) == Some(id)
        {
            self.by_address.remove(&address);
        }
        Some(session)
    }
}
