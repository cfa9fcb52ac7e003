//! Reserved addresses of one segment, and the client as far as reservations need it.

use crate::config::{Owner, Reservation, Subnet};
use meshd_types::{MacAddr, NodeId, SystemUuid};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// A client that asks for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The NIC. Leases belong to a MAC address.
    pub mac: MacAddr,
    /// The node, if it is known and reservations need it.
    pub node: Option<NodeId>,
    /// The VM of the NIC.
    pub vm: Option<SystemUuid>,
    /// The NIC belongs to an approved node: no other machine gets its address from the pool.
    pub keeps_address: bool,
}

impl Client {
    fn is(&self, owner: Owner) -> bool {
        match owner {
            Owner::Mac(mac) => mac == self.mac,
            Owner::Node(node) => Some(node) == self.node,
        }
    }
}

/// The reservations of one network.
#[derive(Default)]
pub(crate) struct Reservations {
    by_address: BTreeMap<Ipv4Addr, Owner>,
    by_owner: BTreeMap<Owner, Ipv4Addr>,
    by_node: bool,
    /// Reservations by records of NICs: they change while the server runs.
    by_record: BTreeMap<MacAddr, Ipv4Addr>,
}

impl Reservations {
    /// Selects the reservations in the network of a pool.
    pub(crate) fn of(subnet: &Subnet, all: &[Reservation]) -> Self {
        let own = || all.iter().filter(|reservation| subnet.is_on_network(reservation.address));
        Reservations {
            by_address: own().map(|reservation| (reservation.address, reservation.owner)).collect(),
            by_owner: own().map(|reservation| (reservation.owner, reservation.address)).collect(),
            by_node: own().any(|reservation| matches!(reservation.owner, Owner::Node(_))),
            by_record: BTreeMap::new(),
        }
    }

    /// Adds a reservation by a record. Returns false if the address or the NIC already has another
    /// reservation.
    pub(crate) fn add(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let owner = Owner::Mac(mac);
        if self.by_owner.get(&owner) == Some(&address) {
            return true;
        }
        if self.by_address.contains_key(&address) || self.by_owner.contains_key(&owner) {
            return false;
        }
        self.by_address.insert(address, owner);
        self.by_owner.insert(owner, address);
        self.by_record.insert(mac, address);
        true
    }

    /// Removes the reservation by a record and returns its address.
    pub(crate) fn remove(&mut self, mac: MacAddr) -> Option<Ipv4Addr> {
        let address = self.by_record.remove(&mac)?;
        self.by_address.remove(&address);
        self.by_owner.remove(&Owner::Mac(mac));
        Some(address)
    }

    /// Returns true if a reservation belongs to a machine, so that the machine of a NIC matters.
    pub(crate) fn has_node_reservations(&self) -> bool {
        self.by_node
    }

    /// Returns the address of a client: that of its NIC before that of its machine.
    pub(crate) fn address_of(&self, client: Client) -> Option<Ipv4Addr> {
        let of = |owner| self.by_owner.get(&owner).copied();
        of(Owner::Mac(client.mac)).or_else(|| of(Owner::Node(client.node?)))
    }

    /// Returns true for a reserved address.
    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Returns true if an address is reserved for another client.
    pub(crate) fn denies(&self, address: Ipv4Addr, client: Client) -> bool {
        self.by_address.get(&address).is_some_and(|owner| !client.is(*owner))
    }

    /// Returns all reserved addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.by_address.keys().copied()
    }
}
