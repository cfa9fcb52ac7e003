//! Who holds an address, how firmly, and until when.

use crate::fleet::Lease;
use crate::id::{MacAddr, SystemUuid, Timestamp};
use crate::serve::central::LeaseChange;
use std::net::Ipv4Addr;

/// How firmly an address is held. Ordered: the weaker one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hold {
    Offered,
    Leased,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) mac: MacAddr,
    pub(super) hold: Hold,
    pub(super) until: Timestamp,
    /// The virtual machine whose card that is.
    pub(super) vm: Option<SystemUuid>,
}

/// The addresses of one card.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) leased: Option<Ipv4Addr>,
    pub(super) offered: Option<Ipv4Addr>,
}

impl Held {
    pub(super) fn place(&mut self, hold: Hold) -> &mut Option<Ipv4Addr> {
        match hold {
            Hold::Leased => &mut self.leased,
            Hold::Offered => &mut self.offered,
        }
    }
}

impl Entry {
    pub(super) fn lease(&self, address: Ipv4Addr) -> Lease {
        Lease { mac: self.mac, address, expires_at: self.until, vm: self.vm }
    }

    pub(super) fn gone(&self, address: Ipv4Addr) -> LeaseChange {
        LeaseChange { before: self.lease(address), after: None }
    }
}
