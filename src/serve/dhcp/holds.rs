//! Who holds an address, how firmly, and until when.

use crate::serve::central::LeaseChange;
use meshd_model::fleet::Lease;
use meshd_types::{MacAddr, SystemUuid, Timestamp};
use std::{net::Ipv4Addr, time::Duration};

/// How long an offer is held.
pub const OFFER_HOLD: Duration = Duration::from_secs(60);
/// How long it is held when the pool is full: longer than any client takes to answer.
const OFFER_LEAST: Duration = Duration::from_secs(5);

/// How firmly an address is held. Ordered: the weaker one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hold {
    Offered,
    Leased,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HeldAddress {
    pub(super) mac: MacAddr,
    pub(super) hold: Hold,
    pub(super) until: Timestamp,
    /// The virtual machine whose card that is.
    pub(super) vm: Option<SystemUuid>,
    /// It is an approved node's, and never another machine's.
    pub(super) kept: bool,
    /// When the client was told that the address is its own; `None` since it has confirmed that it uses it.
    pub(super) acknowledged: Option<Timestamp>,
}

/// The addresses of one card.
#[derive(Clone, Copy, Default)]
pub(super) struct NicAddresses {
    pub(super) leased: Option<Ipv4Addr>,
    pub(super) offered: Option<Ipv4Addr>,
}

impl NicAddresses {
    pub(super) fn place(&mut self, hold: Hold) -> &mut Option<Ipv4Addr> {
        match hold {
            Hold::Leased => &mut self.leased,
            Hold::Offered => &mut self.offered,
        }
    }
}

impl HeldAddress {
    /// When another machine may be given the address; `None` if never. An offer that nobody has taken goes before its time when
    /// there is no other address: a flood of DISCOVERs must not hold a pool for a minute.
    pub(super) fn reusable_at(&self) -> Option<Timestamp> {
        let early = match self.hold {
            Hold::Offered => OFFER_HOLD.saturating_sub(OFFER_LEAST),
            Hold::Leased => Duration::ZERO,
        };
        (!self.kept).then(|| self.until.before(early))
    }

    /// True while nobody else can have the address.
    pub(super) fn counts(&self, now: Timestamp) -> bool {
        self.until > now || self.kept
    }

    pub(super) fn lease(&self, address: Ipv4Addr) -> Lease {
        Lease { mac: self.mac, address, expires_at: self.until, vm: self.vm }
    }

    pub(super) fn gone(&self, address: Ipv4Addr) -> LeaseChange {
        LeaseChange { before: self.lease(address), after: None }
    }
}
