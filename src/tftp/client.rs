//! A client, and the Ethernet source that sends its packets. Pure.

use meshd_types::MacAddr;
use std::net::SocketAddrV4;

/// A client of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Address and port. A sender can invent both.
    pub address: SocketAddrV4,
    pub origin: Origin,
}

/// The Ethernet source of a request. A sender can invent any number of addresses behind one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Not observed: a client on this host, or an interface that is not Ethernet.
    Unobserved,
    /// The client's NIC.
    Nic(MacAddr),
    /// A router, which has many clients.
    Router(MacAddr),
}

impl Client {
    /// Returns a client whose Ethernet source is not observed.
    pub fn unobserved(address: SocketAddrV4) -> Self {
        Client { address, origin: Origin::Unobserved }
    }
}

impl Origin {
    /// Returns the Ethernet source; `None` if it is not observed.
    pub fn mac(self) -> Option<MacAddr> {
        match self {
            Origin::Unobserved => None,
            Origin::Nic(mac) | Origin::Router(mac) => Some(mac),
        }
    }

    /// Returns the part of `limit` that this source may use, at least 1.
    pub(crate) fn share_of(self, limit: usize) -> usize {
        match self {
            Origin::Unobserved => limit,
            Origin::Nic(_) => (limit / 4).max(1),
            Origin::Router(_) => (limit / 4 * 3).max(1),
        }
    }
}
