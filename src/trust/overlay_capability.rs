//! Capabilities: an unguessable URL part that opens one overlay, once, for one address, for
//! minutes.
//!
//! ```text
//!             grant                open                 finish
//!   (nothing) ─────▶ ready ◀─────────────────▶ open ──────────────▶ spent
//!                      │           abort        │
//!                      └── grant for the same node: void ◀┘
//! ```
//! An expired or spent capability is remembered for [`MEMORY`], so that its use differs from a
//! guess: a second use of a spent one is an alarm. Only hashes are stored. A node has at most one
//! valid capability.

use meshd_types::{BootSessionId, Digest, NodeId, Secret, Timestamp, hex};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
    time::Duration,
};
use subtle::ConstantTimeEq as _;

/// Lifetime of a capability.
pub const CAPABILITY_LIFE: Duration = Duration::from_secs(10 * 60);
/// How long a capability is remembered after its grant.
pub const MEMORY: Duration = Duration::from_secs(60 * 60);
/// Maximum number of remembered capabilities; the oldest is forgotten first. A rack of 10,000 needs
/// 10,000 at once.
pub const MAX_CAPABILITIES: usize = 65_536;
/// Length of a capability's text.
pub(crate) const TEXT_LEN: usize = 32;

/// Scope of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub session: BootSessionId,
    /// The node of the overlay.
    pub node: NodeId,
    /// The only address that may use it.
    pub address: Ipv4Addr,
}

/// Identifies a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(u64);

/// Permission to send an overlay: call [`CapabilityTable::finish`] after its last byte, or
/// [`CapabilityTable::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// For [`CapabilityTable::finish`] and [`CapabilityTable::abort`].
    pub id: TransferId,
    /// Scope of the capability.
    pub grant: Grant,
}

/// Why a capability is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Never granted, or forgotten.
    #[error("no such capability")]
    Unknown,
    /// Expired, or replaced by a later one of the same node.
    #[error("the capability has expired")]
    Expired,
    /// Granted to another address.
    #[error("the capability of {} was used from another address", .0.node)]
    Foreign(Grant),
    /// A transfer is running.
    #[error("the overlay of {} is being sent already", .0.node)]
    Busy(Grant),
    /// The overlay was sent completely.
    #[error("the capability of {} was used again", .0.node)]
    Spent(Grant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Open(TransferId),
    Spent,
    Void,
}

#[derive(Clone, Debug)]
struct CapabilityRecord {
    grant: Grant,
    granted_at: Timestamp,
    state: State,
}

/// All capabilities of a site. Pure: time and randomness are arguments.
#[derive(Debug, Default)]
pub struct CapabilityTable {
    entries: HashMap<Digest, CapabilityRecord>,
    /// The valid capability of each node.
    current: HashMap<NodeId, Digest>,
    open: BTreeMap<TransferId, Digest>,
    oldest_first: BTreeSet<(Timestamp, Digest)>,
    last_transfer: u64,
}

impl CapabilityTable {
    pub fn new() -> Self {
        Self::default()
    }

    /// Grants a capability: 32 hexadecimal characters of the random bytes. Earlier ones of that
    /// node become void.
    pub fn grant(&mut self, now: Timestamp, random: [u8; 16], grant: Grant) -> Secret<String> {
        self.void_node(grant.node);
        self.forget(now);
        let text = hex(&random);
        let hash = Digest::of(text.as_bytes());
        // A repetition of the random bytes is practically impossible, but must not leave a stale
        // index entry.
        self.remove(hash);
        self.entries.insert(hash, CapabilityRecord { grant, granted_at: now, state: State::Ready });
        self.oldest_first.insert((now, hash));
        self.current.insert(grant.node, hash);
        Secret::new(text)
    }

    /// Begins a transfer. Accepts any text.
    ///
    /// # Errors
    /// A refusal changes nothing. A wrong address has precedence over other reasons, because it is
    /// an alarm in any state.
    pub fn open(&mut self, now: Timestamp, text: &str, from: Ipv4Addr) -> Result<Transfer, Denied> {
        let hash = self.check(now, text, from)?;
        self.last_transfer += 1;
        let id = TransferId(self.last_transfer);
        let entry = self.entries.get_mut(&hash).ok_or(Denied::Unknown)?;
        entry.state = State::Open(id);
        self.open.insert(id, hash);
        Ok(Transfer { id, grant: entry.grant })
    }

    /// Returns the result of [`CapabilityTable::open`] without a change, for HEAD.
    ///
    /// # Errors
    /// As [`CapabilityTable::open`].
    pub fn probe(&self, now: Timestamp, text: &str, from: Ipv4Addr) -> Result<Grant, Denied> {
        let hash = self.check(now, text, from)?;
        self.entries.get(&hash).map(|entry| entry.grant).ok_or(Denied::Unknown)
    }

    fn check(&self, now: Timestamp, text: &str, from: Ipv4Addr) -> Result<Digest, Denied> {
        if text.len() != TEXT_LEN {
            return Err(Denied::Unknown);
        }
        // The look-up uses a hash that a stranger cannot choose; the result is compared in constant
        // time.
        let hash = Digest::of(text.as_bytes());
        let (known, entry) = self.entries.get_key_value(&hash).ok_or(Denied::Unknown)?;
        if !bool::from(known.0.ct_eq(&hash.0)) {
            return Err(Denied::Unknown);
        }
        let grant = entry.grant;
        if grant.address != from {
            return Err(Denied::Foreign(grant));
        }
        match entry.state {
            State::Spent => Err(Denied::Spent(grant)),
            State::Void => Err(Denied::Expired),
            State::Open(_) => Err(Denied::Busy(grant)),
            State::Ready if now.distance(entry.granted_at) > CAPABILITY_LIFE => {
                Err(Denied::Expired)
            }
            State::Ready => Ok(hash),
        }
    }

    /// Returns whether a transfer is valid: no later capability has replaced its own.
    pub fn is_open(&self, id: TransferId) -> bool {
        self.open.contains_key(&id)
    }

    /// Marks the capability as spent after the last byte. Returns false if a later capability has
    /// replaced it.
    pub fn finish(&mut self, id: TransferId) -> bool {
        self.close(id, State::Spent)
    }

    /// Ends an interrupted transfer: the capability may be used again. Returns false if it is no
    /// longer valid.
    pub fn abort(&mut self, id: TransferId) -> bool {
        self.close(id, State::Ready)
    }

    /// Makes a node's capability void, for example when its boot session ends.
    pub fn void_node(&mut self, node: NodeId) {
        let Some(hash) = self.current.remove(&node) else { return };
        let Some(entry) = self.entries.get_mut(&hash) else { return };
        if let State::Open(id) = entry.state {
            self.open.remove(&id);
        }
        if entry.state != State::Spent {
            entry.state = State::Void;
        }
    }

    /// Returns the number of remembered capabilities.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn close(&mut self, id: TransferId, to: State) -> bool {
        let Some(hash) = self.open.remove(&id) else { return false };
        let Some(entry) = self.entries.get_mut(&hash) else { return false };
        entry.state = to;
        true
    }

    /// Forgets the oldest capabilities.
    fn forget(&mut self, now: Timestamp) {
        while let Some((granted_at, hash)) = self.oldest_first.first().copied() {
            if self.entries.len() < MAX_CAPABILITIES && now.distance(granted_at) <= MEMORY {
                return;
            }
            self.remove(hash);
        }
    }

    fn remove(&mut self, hash: Digest) {
        let Some(entry) = self.entries.remove(&hash) else { return };
        self.oldest_first.remove(&(entry.granted_at, hash));
        if let State::Open(id) = entry.state {
            self.open.remove(&id);
        }
        if self.current.get(&entry.grant.node) == Some(&hash) {
            self.current.remove(&entry.grant.node);
        }
    }
}

#[cfg(test)]
#[path = "overlay_capability_tests.rs"]
mod tests;
