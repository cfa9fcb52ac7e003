//! Who holds an address, as an offer or a lease, and until when.

use crate::effect::{Lease, LeaseChange};
use meshd_types::{MacAddr, SystemUuid, Timestamp};
use std::{net::Ipv4Addr, time::Duration};

/// How long an offer is held.
pub const OFFER_HOLD: Duration = Duration::from_secs(60);
/// How long an offer is held when the pool is full: longer than any client takes to answer.
const OFFER_LEAST: Duration = Duration::from_secs(5);

/// The kind of hold. Ordered: the weaker one is reclaimed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hold {
    Offered,
    Leased,
}

/// The holder of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldAddress {
    pub(crate) mac: MacAddr,
    pub(crate) hold: Hold,
    pub(crate) until: Timestamp,
    /// The virtual machine of the NIC.
    pub(crate) vm: Option<SystemUuid>,
    /// The NIC belongs to an approved node: the address is never given to another machine.
    pub(crate) kept: bool,
    /// When the lease was acknowledged; `None` after the client confirmed that it uses the address.
    pub(crate) acknowledged: Option<Timestamp>,
}

/// The addresses of one NIC.
#[derive(Clone, Copy, Default)]
pub(crate) struct NicAddresses {
    pub(crate) leased: Option<Ipv4Addr>,
    pub(crate) offered: Option<Ipv4Addr>,
}

impl NicAddresses {
    pub(crate) fn place(&mut self, hold: Hold) -> &mut Option<Ipv4Addr> {
        match hold {
            Hold::Leased => &mut self.leased,
            Hold::Offered => &mut self.offered,
        }
    }
}

impl HeldAddress {
    /// Returns when another client may get the address; `None` if never. In a full pool an offer ends early: a flood of DISCOVERs must
    /// not hold a pool for a minute.
    pub(crate) fn reusable_at(&self) -> Option<Timestamp> {
        let early = match self.hold {
            Hold::Offered => OFFER_HOLD.saturating_sub(OFFER_LEAST),
            Hold::Leased => Duration::ZERO,
        };
        (!self.kept).then(|| self.until.before(early))
    }

    /// Returns true while no other client can get the address.
    pub(crate) fn counts(&self, now: Timestamp) -> bool {
        self.until > now || self.kept
    }

    pub(crate) fn lease(&self, address: Ipv4Addr) -> Lease {
        Lease { mac: self.mac, address, expires_at: self.until, vm: self.vm }
    }

    pub(crate) fn gone(&self, address: Ipv4Addr) -> LeaseChange {
        LeaseChange { before: self.lease(address), after: None }
    }
}
