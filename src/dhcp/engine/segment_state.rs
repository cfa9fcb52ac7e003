//! The state of one segment: mode, leases, fill level, other servers.

use super::{
    addresses_in_use::UnprovenOffers, other_servers::OtherServers,
    started_exchanges::StartedExchanges,
};
use crate::{
    config::{DhcpMode, Link, Reservation, Segment, Subnet},
    effect::{Change, Effect, Lease, OtherServer, SegmentStatus},
    lease::{LeaseTable, PoolLevel, PoolUse},
    warning::Warning,
};
use meshd_types::{MacAddr, Timestamp};
use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc};

/// Subnet and leases of a segment in authoritative mode.
pub(crate) struct Authority {
    pub(crate) subnet: Subnet,
    pub(crate) leases: LeaseTable,
}

/// The state of a segment.
pub(crate) struct SegmentState {
    pub(crate) name: Arc<str>,
    pub(crate) mode: DhcpMode,
    /// The server address for its clients; `None` means that of the interface.
    pub(crate) address: Option<Ipv4Addr>,
    /// In authoritative mode.
    pub(crate) authority: Option<Box<Authority>>,
    /// Ethernet addresses of its relay; with an empty list, any address may relay.
    pub(crate) relay_macs: Vec<MacAddr>,
    /// In proxy mode.
    pub(crate) started_exchanges: StartedExchanges,
    pub(crate) other_servers: OtherServers,
    pub(crate) unproven_offers: UnprovenOffers,
    level: PoolLevel,
    /// Number of DISCOVERs that got no address.
    pub(crate) refusals: u64,
}

impl SegmentState {
    pub(crate) fn new(
        segment: Segment,
        own: &BTreeSet<Ipv4Addr>,
        reservations: &[Reservation],
    ) -> Self {
        let name = segment.name().into();
        let relay = match segment.link {
            Link::Relay(relay) => Some(relay),
            Link::Interface(_) => None,
        };
        let authority =
            segment.subnet.filter(|_| segment.mode == DhcpMode::Authoritative).map(|subnet| {
                Box::new(Authority {
                    leases: LeaseTable::new(&subnet, relay, own, reservations),
                    subnet,
                })
            });
        SegmentState {
            name,
            mode: segment.mode,
            address: segment.address,
            authority,
            relay_macs: segment.relay_macs,
            started_exchanges: StartedExchanges::default(),
            other_servers: OtherServers::default(),
            unproven_offers: UnprovenOffers::default(),
            level: PoolLevel::default(),
            refusals: 0,
        }
    }

    /// Loads the stored leases of this network.
    pub(crate) fn load(&mut self, stored: &[Lease]) {
        let Some(Authority { subnet, leases }) = self.authority.as_deref_mut() else { return };
        leases.load(stored.iter().filter(|lease| subnet.is_on_network(lease.address)).cloned());
    }

    /// Reserves the address of a NIC, if it is in this network. Returns false if it cannot be
    /// reserved.
    pub(crate) fn reserve(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let authority = self.authority.as_deref_mut();
        let own = authority.filter(|authority| authority.subnet.is_on_network(address));
        own.is_none_or(|authority| authority.leases.reserve(mac, address))
    }

    pub(crate) fn is_on_network(&self, address: Ipv4Addr) -> bool {
        self.authority.as_ref().is_some_and(|authority| authority.subnet.is_on_network(address))
    }

    /// Counts a DISCOVER that got no address. Returns a warning if a fill level was reached.
    pub(crate) fn refuse_address(&mut self, now: Timestamp) -> Option<Warning> {
        self.refusals += 1;
        self.reach_level(now, true)
    }

    /// Updates the fill level. Returns a warning if a level was reached.
    pub(crate) fn update_level(&mut self, now: Timestamp) -> Option<Warning> {
        self.reach_level(now, false)
    }

    fn reach_level(&mut self, now: Timestamp, refused: bool) -> Option<Warning> {
        let usage = self.usage(now);
        let next = self.level.next(usage, refused);
        let before = std::mem::replace(&mut self.level, next);
        let segment = self.name.clone();
        let level = self.level;
        (level > before).then_some(Warning::Pool { segment, level, usage })
    }

    fn usage(&mut self, now: Timestamp) -> PoolUse {
        self.authority
            .as_mut()
            .map_or_else(PoolUse::default, |authority| authority.leases.usage(now))
    }

    pub(crate) fn status(&mut self, now: Timestamp) -> SegmentStatus {
        let other_servers = self.other_servers.recent(now);
        let pool = self.usage(now);
        self.level = self.level.min(self.level.next(pool, false));
        SegmentStatus { name: self.name.to_string(), mode: self.mode, pool, other_servers }
    }

    /// Removes what the probe of another server left behind: its offer holds no address, and its
    /// exchange is no sign of a boot.
    pub(crate) fn forget_probe(&mut self, mac: MacAddr, effects: &mut Vec<Effect>) {
        if let Some(authority) = &mut self.authority {
            authority.leases.withdraw(mac);
        }
        effects.retain(|effect| !matches!(effect, Effect::Store(Change::Exchange(_))));
    }

    /// Records another server. Returns a warning if it is new and conflicts with the mode.
    pub(crate) fn record_other_server(&mut self, server: OtherServer) -> Option<Warning> {
        let OtherServer { address, proxy, .. } = server;
        let is_new = self.other_servers.record(server);
        let is_expected = self.mode == DhcpMode::Proxy && !proxy;
        let warning =
            || Warning::OtherServer { segment: self.name.clone(), server: address, proxy };
        (is_new && !is_expected).then(warning)
    }
}
