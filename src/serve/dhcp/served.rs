//! One segment as the engine keeps it: mode, leases, how full it is, who else is there.

use super::{discoveries::Discoveries, leases::LeaseTable, level::Level, note::Note};
use crate::serve::central::{OtherServer, PoolUse, SegmentHealth};
use meshd_config::{DhcpMode, Link, Pool, Reservation, Segment};
use meshd_model::{fleet::Lease, work::ReservedNic};
use meshd_types::{MacAddr, Timestamp};
use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

/// Other servers that are remembered of one segment; with more, the one that was silent for longest goes.
const MAX_OTHERS: usize = 16;
/// How long a server that is no longer heard is remembered: three probes.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);

/// What it takes to lease addresses.
pub(super) struct Authority {
    pub(super) pool: Pool,
    pub(super) leases: LeaseTable,
}

/// One segment.
pub(super) struct Served {
    pub(super) name: Arc<str>,
    pub(super) mode: DhcpMode,
    /// What its clients are told, if the site says so.
    pub(super) address: Option<Ipv4Addr>,
    /// Present in authoritative mode.
    pub(super) authority: Option<Box<Authority>>,
    /// Ethernet addresses of its relay; empty if the site does not say.
    pub(super) relay_macs: Vec<MacAddr>,
    /// Exchanges with another server that have begun.
    pub(super) discoveries: Discoveries,
    others: Vec<OtherServer>,
    level: Level,
    refused: bool,
}

impl Served {
    pub(super) fn new(segment: Segment, own: &BTreeSet<Ipv4Addr>, reservations: &[Reservation]) -> Self {
        let name = segment.name().into();
        let relay = match segment.link {
            Link::Relay(relay) => Some(relay),
            Link::Interface(_) => None,
        };
        let authority = segment.pool.filter(|_| segment.mode == DhcpMode::Authoritative).map(|pool| {
            let taken = own.iter().copied().chain(relay);
            Box::new(Authority { leases: LeaseTable::new(&pool, taken, reservations), pool })
        });
        Served {
            name,
            mode: segment.mode,
            address: segment.address,
            authority,
            relay_macs: segment.relay_macs,
            discoveries: Discoveries::default(),
            others: Vec::new(),
            level: Level::default(),
            refused: false,
        }
    }

    /// What was stored of this network.
    pub(super) fn load(&mut self, stored: &[Lease]) {
        let Some(Authority { pool, leases }) = self.authority.as_deref_mut() else { return };
        leases.load(stored.iter().filter(|lease| pool.is_on_network(lease.address)).cloned());
    }

    /// Keeps what is reserved for a card of a virtual machine, if it is in this network. False where it cannot be kept.
    pub(super) fn keep(&mut self, card: &ReservedNic) -> bool {
        let authority = self.authority.as_deref_mut();
        let own = authority.zip(card.address).filter(|(authority, address)| authority.pool.is_on_network(*address));
        own.is_none_or(|(authority, address)| authority.leases.keep(card.mac, address))
    }

    pub(super) fn is_on_network(&self, address: Ipv4Addr) -> bool {
        self.authority.as_ref().is_some_and(|authority| authority.pool.is_on_network(address))
    }

    /// True if the last DISCOVER got no address.
    pub(super) fn has_just_refused(&self) -> bool {
        self.refused
    }

    /// Another server was heard. The note is for one that is new and should not be there.
    pub(super) fn rival(&mut self, now: Timestamp, address: Ipv4Addr, proxy: bool) -> Option<Note> {
        let known = self.others.iter().position(|other| other.address == address);
        if let Some(place) = known {
            self.others.remove(place);
        } else if self.others.len() >= MAX_OTHERS {
            self.others.remove(0);
        }
        self.others.push(OtherServer { address, proxy, last: now });
        let welcome = self.mode == DhcpMode::Proxy && !proxy;
        let news = known.is_none() && !welcome;
        news.then(|| Note::OtherServer { segment: self.name.clone(), server: address, proxy })
    }

    /// Takes note of how full the pool is after a DISCOVER. The note is for a level that is reached.
    pub(super) fn filled(&mut self, now: Timestamp, refused: bool) -> Option<Note> {
        self.refused = refused;
        let usage = self.usage(now);
        let next = self.level.next(usage, refused);
        let before = std::mem::replace(&mut self.level, next);
        let (segment, level) = (self.name.clone(), self.level);
        (level > before).then_some(Note::Pool { segment, level, usage })
    }

    fn usage(&mut self, now: Timestamp) -> PoolUse {
        self.authority.as_mut().map_or_else(PoolUse::default, |authority| authority.leases.usage(now))
    }

    pub(super) fn health(&mut self, now: Timestamp) -> SegmentHealth {
        self.others.retain(|other| now.since(other.last) < REMEMBERED);
        let pool = self.usage(now);
        self.level = self.level.min(self.level.next(pool, false));
        SegmentHealth { name: self.name.to_string(), mode: self.mode, pool, other_servers: self.others.clone() }
    }
}
