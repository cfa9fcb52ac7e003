//! Reserved addresses of one segment, and who a client is as far as they are concerned.

use meshd_config::{Pool, Reservation, Whom};
use meshd_types::{MacAddr, NodeId, SystemUuid};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Who asks for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its card; leases are by it.
    pub mac: MacAddr,
    /// Its machine, if that is known and matters.
    pub node: Option<NodeId>,
    /// The virtual machine whose card it is.
    pub vm: Option<SystemUuid>,
    /// It is an approved node's: its address is never given to another machine.
    pub keeps_address: bool,
}

impl Client {
    fn is(&self, whom: Whom) -> bool {
        match whom {
            Whom::Mac(mac) => mac == self.mac,
            Whom::Node(node) => Some(node) == self.node,
        }
    }
}

/// The reservations of one network.
#[derive(Default)]
pub(super) struct Reserved {
    by_address: BTreeMap<Ipv4Addr, Whom>,
    by_owner: BTreeMap<Whom, Ipv4Addr>,
    by_node: bool,
    /// Those of them that are of virtual machines.
    cards: BTreeMap<MacAddr, Ipv4Addr>,
}

impl Reserved {
    /// Those of a site that lie in the network of a pool.
    pub(super) fn of(pool: &Pool, all: &[Reservation]) -> Self {
        let own = || all.iter().filter(|reservation| pool.is_on_network(reservation.address));
        Reserved {
            by_address: own().map(|reservation| (reservation.address, reservation.whom)).collect(),
            by_owner: own().map(|reservation| (reservation.whom, reservation.address)).collect(),
            by_node: own().any(|reservation| matches!(reservation.whom, Whom::Node(_))),
            cards: BTreeMap::new(),
        }
    }

    /// Keeps an address for the card of a virtual machine, too. False where it is kept for somebody else, or another one for the card.
    pub(super) fn add(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let whom = Whom::Mac(mac);
        if self.by_address.contains_key(&address) || self.by_owner.contains_key(&whom) {
            return false;
        }
        self.by_address.insert(address, whom);
        self.by_owner.insert(whom, address);
        self.cards.insert(mac, address);
        true
    }

    /// Gives the address back that was kept for the card of a virtual machine.
    pub(super) fn remove(&mut self, mac: MacAddr) -> Option<Ipv4Addr> {
        let address = self.cards.remove(&mac)?;
        self.by_address.remove(&address);
        self.by_owner.remove(&Whom::Mac(mac));
        Some(address)
    }

    /// True if it matters which machine a card belongs to.
    pub(super) fn asks_for_nodes(&self) -> bool {
        self.by_node
    }

    /// The address of a client: that of its card before that of its machine.
    pub(super) fn address_of(&self, client: Client) -> Option<Ipv4Addr> {
        let of = |whom| self.by_owner.get(&whom).copied();
        of(Whom::Mac(client.mac)).or_else(|| of(Whom::Node(client.node?)))
    }

    /// True if an address is kept, for whomever.
    pub(super) fn holds(&self, address: Ipv4Addr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// True if an address is kept for somebody else.
    pub(super) fn denies(&self, address: Ipv4Addr, client: Client) -> bool {
        self.by_address.get(&address).is_some_and(|whom| !client.is(*whom))
    }

    /// All addresses that are kept.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.by_address.keys().copied()
    }
}
