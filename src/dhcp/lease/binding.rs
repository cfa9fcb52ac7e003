//! A binding: the NIC that holds an address, as an offer or a lease, and its end.

use crate::effect::{Lease, LeaseChange};
use meshd_types::{MacAddr, SystemUuid, Timestamp};
use std::{net::Ipv4Addr, time::Duration};

/// How long an offer is held.
pub const OFFER_HOLD: Duration = Duration::from_secs(60);
/// How long an offer is held when the pool is full: longer than any client takes to answer.
const MIN_OFFER_HOLD: Duration = Duration::from_secs(5);

/// The state of a binding. Ordered: the weaker one is reclaimed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BindingState {
    Offered,
    Leased,
}

/// A binding of an address to a NIC (RFC 2131, 1.5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) mac: MacAddr,
    pub(crate) state: BindingState,
    pub(crate) until: Timestamp,
    /// The VM of the NIC.
    pub(crate) vm: Option<SystemUuid>,
    /// The NIC belongs to an approved node: no other machine gets the address from the pool. The owner
    /// of a reservation gets it after the lease.
    pub(crate) pinned: bool,
    /// When the lease was acknowledged; `None` after the client confirmed that it uses the address.
    pub(crate) acknowledged: Option<Timestamp>,
}

/// A value for each state: the addresses of a NIC, or numbers of addresses.
#[derive(Clone, Copy, Default)]
pub(crate) struct ByState<T> {
    pub(crate) offered: T,
    pub(crate) leased: T,
}

impl<T> ByState<T> {
    pub(crate) fn of(&mut self, state: BindingState) -> &mut T {
        match state {
            BindingState::Offered => &mut self.offered,
            BindingState::Leased => &mut self.leased,
        }
    }
}

impl Binding {
    /// Returns when another client may get the address; `None` if never. In a full pool an offer
    /// ends early: a flood of DISCOVERs must not hold a pool for a minute.
    pub(crate) fn reusable_at(&self) -> Option<Timestamp> {
        let early = match self.state {
            BindingState::Offered => OFFER_HOLD.saturating_sub(MIN_OFFER_HOLD),
            BindingState::Leased => Duration::ZERO,
        };
        (!self.pinned).then(|| self.until.before(early))
    }

    /// Returns true while no other client can get the address.
    pub(crate) fn counts(&self, now: Timestamp) -> bool {
        self.until > now || self.pinned
    }

    pub(crate) fn lease(&self, address: Ipv4Addr) -> Lease {
        Lease { mac: self.mac, address, expires_at: self.until, vm: self.vm }
    }

    pub(crate) fn removal(&self, address: Ipv4Addr) -> LeaseChange {
        LeaseChange { before: self.lease(address), after: None }
    }
}
