//! The Ethernet sources of the segments of each TCP connection. Pure: time and expectations are
//! arguments.
//!
//! A connection is known from its SYN on. Until its server accepts it, an entry expires after
//! [`HANDSHAKE`]; from then on it lives as long as the connection. Each Ethernet source has its own
//! share of the entries before that, so a flood of SYNs evicts nothing of others. An entry that has
//! seen more than SYNs is never emptied: its segments may be in a connection that the server has
//! yet to accept.

use super::tcp_segment::{Ends, Seen};
use meshd_central::{ConnectionFate, ForeignSegment};
use meshd_types::{MacAddr, failpoint};
use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

/// Time from the SYN to the server's accept. Linux gives up a handshake after 63 seconds.
const HANDSHAKE: Duration = Duration::from_secs(64);
/// Maximum number of connections before their accept: of all sources, and of one Ethernet source (a
/// router has many clients).
const MAX_ARRIVING: usize = 65_536;
const MAX_ARRIVING_OF_SOURCE: usize = 8192;
/// Maximum number of recorded sources of one connection: a second one already ends it.
const MAX_SOURCES: usize = 4;

/// The Ethernet sources from which segments of an address may come.
pub(super) enum Expected {
    /// One machine; `None` if it is not known which. Then all segments of one connection must come
    /// from one machine.
    Machine(Option<MacAddr>),
    /// Routers; if the list is empty, any.
    Routers(Vec<MacAddr>),
}

struct TrackedConnection {
    sources: Vec<MacAddr>,
    /// The number of lost frames when the connection began; `None` if its SYN was not seen.
    lost_before: Option<u64>,
    /// The number of fragments when the connection began.
    fragments_before: u64,
    /// Before the accept: the source that is charged for the connection.
    arriving: Option<MacAddr>,
    /// Number of the entry, by which the queue of arriving ones knows it.
    number: u64,
    /// Only SYNs were seen.
    is_silent: bool,
    /// Number of accepted connections: a server may accept the next one before it notices the end
    /// of the former.
    accepted: usize,
    /// A SYN arrived after the accept: the client may have opened the next connection with the same
    /// ends.
    is_reopened: bool,
    fate: Arc<ConnectionFate>,
}

/// The fragments of one client. A fragment does not name its connection, so it counts for all
/// present ones of its client.
struct Fragments {
    /// Number of the last one.
    last: u64,
    sources: Vec<MacAddr>,
}

#[derive(Default)]
pub(super) struct SegmentTable {
    entries: BTreeMap<Ends, TrackedConnection>,
    /// Times and numbers of entries before their accept, the oldest first. Some are accepted or
    /// gone.
    arriving: VecDeque<(Duration, Ends, u64)>,
    /// Number of entries before their accept, of each source.
    arriving_of: BTreeMap<MacAddr, usize>,
    /// Number of entries before their accept, of all sources.
    arriving_count: usize,
    last_number: u64,
    /// Number of frames that the kernel did not deliver.
    lost: u64,
    /// Number of fragments of all clients.
    fragments: u64,
    /// Only of clients with an entry: the entries bound their number.
    fragments_of: BTreeMap<Ipv4Addr, Fragments>,
}

impl SegmentTable {
    /// Records a packet. Returns the connections in which its Ethernet source is foreign.
    pub(super) fn observe(
        &mut self,
        now: Duration,
        seen: Seen,
        source: MacAddr,
        expected: impl Fn(Ipv4Addr) -> Expected,
    ) -> Vec<ForeignSegment> {
        match seen {
            Seen::Segment { ends, opens } => {
                if opens {
                    self.open(now, ends, source);
                }
                let entry = self.entries.get_mut(&ends);
                let foreign =
                    entry.and_then(|TrackedConnection { sources, fate, is_silent, .. }| {
                        *is_silent &= opens;
                        record_source(sources, *ends.client.ip(), source, expected, fate)
                    });
                foreign.into_iter().collect()
            }
            Seen::Fragment { client } => {
                self.add_fragment(client, source, expected).into_iter().collect()
            }
        }
    }

    /// Records a fragment of a client that has a connection. It ends no connection, because its
    /// sender need not know one. Returns it if its source is new and foreign.
    fn add_fragment(
        &mut self,
        client: Ipv4Addr,
        source: MacAddr,
        expected: impl Fn(Ipv4Addr) -> Expected,
    ) -> Option<ForeignSegment> {
        // Segments of a later connection are not in this fragment.
        if !self.has_entry(client) && failpoint::defends("fragment-clients") {
            return None;
        }
        self.fragments += 1;
        let record =
            self.fragments_of.entry(client).or_insert(Fragments { last: 0, sources: Vec::new() });
        record.last = self.fragments;
        record_source(&mut record.sources, client, source, expected, &Arc::default())
    }

    fn open(&mut self, now: Duration, ends: Ends, source: MacAddr) {
        self.expire(now);
        if let Some(entry) = self.entries.get_mut(&ends) {
            entry.is_reopened = entry.accepted > 0;
            // Another machine sent a SYN with these ends before: the present one begins anew.
            let is_replaced =
                entry.accepted == 0 && entry.is_silent && !entry.sources.contains(&source);
            if !is_replaced {
                return;
            }
            self.remove(ends);
        }
        let of_source = self.arriving_of.get(&source).copied().unwrap_or_default();
        if of_source < MAX_ARRIVING_OF_SOURCE && self.arriving_count < MAX_ARRIVING {
            let entry = TrackedConnection::new(Some(self.lost), self.fragments);
            self.insert_arriving(now, ends, source, entry);
        }
    }

    fn insert_arriving(
        &mut self,
        now: Duration,
        ends: Ends,
        source: MacAddr,
        entry: TrackedConnection,
    ) {
        // Entries that were accepted quickly stay in the queue.
        if self.arriving.len() >= 2 * MAX_ARRIVING {
            let entries = &self.entries;
            self.arriving.retain(|(_, ends, number)| is_arriving(entries, ends, *number));
        }
        self.last_number += 1;
        let number = self.last_number;
        self.arriving.push_back((now, ends, number));
        *self.arriving_of.entry(source).or_default() += 1;
        self.arriving_count += 1;
        self.entries.insert(ends, TrackedConnection { arriving: Some(source), number, ..entry });
    }

    fn remove(&mut self, ends: Ends) -> Option<TrackedConnection> {
        let mut entry = self.entries.remove(&ends)?;
        self.release(entry.arriving.take());
        Some(entry)
    }

    /// Ends the charge of a source for an entry before its accept.
    fn release(&mut self, source: Option<MacAddr>) {
        let Some(source) = source else { return };
        self.arriving_count = self.arriving_count.saturating_sub(1);
        if let Some(count) = self.arriving_of.get_mut(&source) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.arriving_of.remove(&source);
            }
        }
    }

    /// Removes connections that no server accepted in time.
    fn expire(&mut self, now: Duration) {
        while let Some((since, ends, number)) = self.arriving.front().copied() {
            if now.saturating_sub(since) <= HANDSHAKE {
                break;
            }
            self.arriving.pop_front();
            // The client may have used the ends again.
            if is_arriving(&self.entries, &ends, number) {
                self.remove(ends);
                self.forget_fragments(*ends.client.ip());
            }
        }
    }

    /// Records that a server has accepted a connection.
    pub(super) fn accept(&mut self, ends: Ends) -> Arc<ConnectionFate> {
        let entry = self
            .entries
            .entry(ends)
            .or_insert_with(|| TrackedConnection::new(None, self.fragments));
        entry.is_reopened &= entry.accepted == 0;
        entry.accepted += 1;
        let fate = Arc::clone(&entry.fate);
        let charged = entry.arriving.take();
        self.release(charged);
        fate
    }

    /// Records the end of an accepted connection.
    pub(super) fn close(&mut self, now: Duration, ends: Ends) {
        let Some(entry) = self.entries.get_mut(&ends) else { return };
        entry.accepted = entry.accepted.saturating_sub(1);
        if entry.accepted > 0 {
            return;
        }
        if let Some(TrackedConnection {
            sources,
            lost_before,
            fragments_before,
            is_reopened: true,
            ..
        }) = self.remove(ends)
            && let Some(first) = sources.first().copied()
        {
            // Its SYN is known, and no server has accepted it yet. Segments of either connection
            // were recorded.
            let next = TrackedConnection {
                sources,
                is_silent: false,
                ..TrackedConnection::new(lost_before, fragments_before)
            };
            self.insert_arriving(now, ends, first, next);
        }
        self.forget_fragments(*ends.client.ip());
    }

    fn has_entry(&self, client: Ipv4Addr) -> bool {
        let port = |port| SocketAddrV4::new(client, port);
        let first = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let last = SocketAddrV4::new(Ipv4Addr::BROADCAST, u16::MAX);
        let ends =
            Ends { client: port(0), server: first }..=Ends { client: port(u16::MAX), server: last };
        self.entries.range(ends).next().is_some()
    }

    /// Removes the fragments of a client whose last connection has ended.
    fn forget_fragments(&mut self, client: Ipv4Addr) {
        if !self.has_entry(client) {
            self.fragments_of.remove(&client);
        }
    }

    /// Records frames that the kernel did not deliver: they may belong to any present connection.
    pub(super) fn add_lost(&mut self, frames: u64) {
        self.lost = self.lost.saturating_add(frames);
    }

    /// Returns the sources of a connection, and whether all of its frames were seen. Fragments of
    /// its client may belong to it, so their senders are among the sources: a refusal then names
    /// them.
    pub(super) fn sources(&self, ends: &Ends) -> (Vec<MacAddr>, bool) {
        let Some(entry) = self.entries.get(ends) else { return (Vec::new(), false) };
        let fragments =
            self.fragments_of.get(ends.client.ip()).filter(|one| one.last > entry.fragments_before);
        match fragments {
            Some(fragments) if failpoint::defends("fragment-senders") => {
                (entry.sources.iter().chain(&fragments.sources).copied().collect(), false)
            }
            Some(_) => (Vec::new(), false),
            None => (entry.sources.clone(), entry.lost_before == Some(self.lost)),
        }
    }
}

impl TrackedConnection {
    fn new(lost_before: Option<u64>, fragments_before: u64) -> Self {
        TrackedConnection {
            sources: Vec::new(),
            lost_before,
            fragments_before,
            arriving: None,
            number: 0,
            is_silent: true,
            accepted: 0,
            is_reopened: false,
            fate: Arc::default(),
        }
    }
}

/// Returns true if an entry of the queue is still before its accept.
fn is_arriving(entries: &BTreeMap<Ends, TrackedConnection>, ends: &Ends, number: u64) -> bool {
    entries.get(ends).is_some_and(|entry| entry.number == number && entry.arriving.is_some())
}

/// Records the source of a segment. Returns it if it is new and foreign.
fn record_source(
    sources: &mut Vec<MacAddr>,
    address: Ipv4Addr,
    source: MacAddr,
    expected: impl Fn(Ipv4Addr) -> Expected,
    fate: &Arc<ConnectionFate>,
) -> Option<ForeignSegment> {
    if sources.contains(&source) || sources.len() >= MAX_SOURCES {
        return None;
    }
    let found = foreign(sources, address, source, expected(address), fate);
    sources.push(source);
    found
}

/// Returns a packet if its source is foreign after these sources of the same connection.
pub(super) fn foreign(
    sources: &[MacAddr],
    address: Ipv4Addr,
    source: MacAddr,
    allowed: Expected,
    fate: &Arc<ConnectionFate>,
) -> Option<ForeignSegment> {
    let is_routed = matches!(allowed, Expected::Routers(_));
    let (is_foreign, expected) = match allowed {
        Expected::Machine(Some(machine)) => (machine != source, Some(machine)),
        Expected::Machine(None) => {
            (!sources.is_empty() && !sources.contains(&source), sources.first().copied())
        }
        Expected::Routers(routers) => {
            (!routers.is_empty() && !routers.contains(&source), routers.first().copied())
        }
    };
    is_foreign.then(|| ForeignSegment {
        address,
        source,
        expected,
        is_routed,
        fate: Arc::clone(fate),
    })
}

#[cfg(test)]
mod tests;
