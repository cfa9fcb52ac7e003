//! Capabilities: an unguessable URL part that opens one overlay, once, for one address, for minutes.
//!
//! ```text
//!             grant                open                 finish
//!   (nothing) ─────▶ ready ◀─────────────────▶ open ──────────────▶ spent
//!                      │           abort        │
//!                      └── grant for the same node: void ◀┘
//! ```
//! A capability that is over stays known for [`MEMORY`], so that its use can be told from a guess: a spent one that is
//! tried again is an alarm. Only hashes are kept. One node has at most one that opens anything.

use meshd_types::{BootSessionId, Digest, NodeId, Secret, Timestamp, hex};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
    time::Duration,
};
use subtle::ConstantTimeEq as _;

/// How long a capability opens something.
pub const CAPABILITY_LIFE: Duration = Duration::from_secs(10 * 60);
/// How long after its grant a capability is remembered.
pub const MEMORY: Duration = Duration::from_secs(60 * 60);
/// Most capabilities that are remembered; the oldest is forgotten first. A rack of 10,000 needs 10,000 at once.
pub const MAX_CAPABILITIES: usize = 65_536;
/// Characters of a capability's text.
const TEXT_LEN: usize = 32;

/// What a capability was given out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub session: BootSessionId,
    /// The node whose overlay it opens.
    pub node: NodeId,
    /// The only address that may use it.
    pub address: Ipv4Addr,
}

/// Names one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(u64);

/// An overlay may be sent: say [`Book::finish`] after its last byte, or [`Book::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// For [`Book::finish`] and [`Book::abort`].
    pub id: TransferId,
    /// What it was given out for.
    pub grant: Grant,
}

/// Why a capability opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Never given out, or long forgotten.
    #[error("no such capability")]
    Unknown,
    /// Its time is over, or a later one of the same node has replaced it.
    #[error("the capability has expired")]
    Expired,
    /// Somebody else's address.
    #[error("the capability of {} was used from another address", .0.node)]
    Foreign(Grant),
    /// A transfer is under way.
    #[error("the overlay of {} is being sent already", .0.node)]
    Busy(Grant),
    /// Its overlay was sent whole.
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
pub struct Book {
    entries: HashMap<Digest, CapabilityRecord>,
    /// The capability of each node that may still open something.
    current: HashMap<NodeId, Digest>,
    open: BTreeMap<TransferId, Digest>,
    oldest_first: BTreeSet<(Timestamp, Digest)>,
    last_transfer: u64,
}

impl Book {
    /// An empty book.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives out a capability: 32 hexadecimal characters of the random bytes. Earlier ones of that node are void.
    pub fn grant(&mut self, now: Timestamp, random: [u8; 16], grant: Grant) -> Secret<String> {
        self.void_node(grant.node);
        self.forget(now);
        let text = hex(&random);
        let hash = Digest::of(text.as_bytes());
        // The same random bytes twice: not in this universe, but the index must not be left with a stale line.
        self.remove(hash);
        self.entries.insert(hash, CapabilityRecord { grant, granted_at: now, state: State::Ready });
        self.oldest_first.insert((now, hash));
        self.current.insert(grant.node, hash);
        Secret::new(text)
    }

    /// Begins a transfer. Total on any text.
    ///
    /// # Errors
    /// [`Denied`]; nothing has changed then. A wrong address outranks every other reason: it is an alarm in any state.
    pub fn open(&mut self, now: Timestamp, text: &str, from: Ipv4Addr) -> Result<Transfer, Denied> {
        let hash = self.check(now, text, from)?;
        self.last_transfer += 1;
        let id = TransferId(self.last_transfer);
        let entry = self.entries.get_mut(&hash).ok_or(Denied::Unknown)?;
        entry.state = State::Open(id);
        self.open.insert(id, hash);
        Ok(Transfer { id, grant: entry.grant })
    }

    /// What [`Book::open`] would say, without opening: for HEAD.
    ///
    /// # Errors
    /// As [`Book::open`].
    pub fn probe(&self, now: Timestamp, text: &str, from: Ipv4Addr) -> Result<Grant, Denied> {
        let hash = self.check(now, text, from)?;
        self.entries.get(&hash).map(|entry| entry.grant).ok_or(Denied::Unknown)
    }

    fn check(&self, now: Timestamp, text: &str, from: Ipv4Addr) -> Result<Digest, Denied> {
        if text.len() != TEXT_LEN {
            return Err(Denied::Unknown);
        }
        // The table is searched by a hash that a stranger cannot steer; what is found is compared in constant time.
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
            State::Ready if now.since(entry.granted_at) > CAPABILITY_LIFE => Err(Denied::Expired),
            State::Ready => Ok(hash),
        }
    }

    /// True while a transfer counts: no later capability has replaced the one that it is of.
    pub fn is_open(&self, id: TransferId) -> bool {
        self.open.contains_key(&id)
    }

    /// The last byte was written: the capability is spent. False if the transfer no longer counts, because a later
    /// capability has replaced this one in the meantime.
    pub fn finish(&mut self, id: TransferId) -> bool {
        self.close(id, State::Spent)
    }

    /// The transfer was cut off: the capability may be tried again. False if it no longer counts.
    pub fn abort(&mut self, id: TransferId) -> bool {
        self.close(id, State::Ready)
    }

    /// Makes a node's capability void, such as when its boot session is over.
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

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when none is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn close(&mut self, id: TransferId, to: State) -> bool {
        let Some(hash) = self.open.remove(&id) else { return false };
        let Some(entry) = self.entries.get_mut(&hash) else { return false };
        entry.state = to;
        true
    }

    /// Makes room for one more.
    fn forget(&mut self, now: Timestamp) {
        while let Some((granted_at, hash)) = self.oldest_first.first().copied() {
            if self.entries.len() < MAX_CAPABILITIES && now.since(granted_at) <= MEMORY {
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
#[path = "capability_tests.rs"]
mod tests;
