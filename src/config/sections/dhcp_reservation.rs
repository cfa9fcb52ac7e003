//! `[[reservation]]`: fixed addresses and names of machines.

use super::segment::Segments;
use crate::{
    Owner, Reservation, Subnet,
    reader::{Document, Located, Table, brief},
};
use meshd_types::{MacAddr, NodeId, is_host_name, is_reserved_host_name};
use std::{collections::BTreeMap, net::Ipv4Addr};

const MAX_RESERVATIONS: usize = 16_384;

/// Addresses and names that are reserved.
type Reserved = (Vec<Reservation>, BTreeMap<Owner, String>);

/// Parses all reservations. Records faults of each, and conflicts between reservations and with
/// segments.
pub(crate) fn read(document: &Document, root: &Table<'_>, segments: &Segments) -> Option<Reserved> {
    let tables = root.tables("reservation");
    if !root.is_within("reservation", MAX_RESERVATIONS, tables.len(), "reservations") {
        return None;
    }
    let subnets = segments.subnets();
    let mut addresses = BTreeMap::new();
    let mut owners = BTreeMap::new();
    let mut names = Names::default();
    let read = |table: &Table<'_>| {
        let owner = owner(document, table);
        let name = name(document, table);
        let address = address(document, table, segments, subnets.as_deref());
        if let Some(address) = &address
            && let Some(line) = addresses.insert(address.value, address.line)
        {
            let message = format!("{} is reserved on line {line} already", address.value);
            document.fault(address, message, "reserve another address");
        }
        let owner = owner?;
        if let Some(name) = name {
            names.insert(document, &owner, name);
        }
        let Some(address) = address else { return (!table.has("address")).then_some(None) };
        // One machine may have an address in each network that it is moved between.
        let network =
            subnets.iter().flatten().position(|subnet| subnet.is_on_network(address.value));
        if let Some(network) = network
            && let Some(line) = owners.insert((owner.value, network), owner.line)
        {
            document.fault(
                &owner,
                format!("line {line} reserves an address of this network for it"),
                "remove one",
            );
        }
        Some(Some(Reservation {
            owner: owner.value,
            address: address.value,
            parent: parent(table)?,
        }))
    };
    let read: Option<Vec<_>> = tables.iter().map(read).collect::<Vec<_>>().into_iter().collect();
    let names = names.of_owner.into_iter().map(|(owner, name)| (owner, name.value)).collect();
    Some((read?.into_iter().flatten().collect(), names))
}

/// Names of nodes that are already reserved.
#[derive(Default)]
struct Names {
    of_owner: BTreeMap<Owner, Located<String>>,
    owners: BTreeMap<String, Owner>,
}

impl Names {
    /// Adds a name. A machine with several addresses may have its name in each reservation.
    fn insert(&mut self, document: &Document, owner: &Located<Owner>, name: Located<String>) {
        let other = self.owners.get(&name.value).filter(|other| **other != owner.value);
        if let Some(line) = other.and_then(|other| Some(self.of_owner.get(other)?.line)) {
            let message = format!("`{}` is the name of another machine, line {line}", name.value);
            return document.fault(&name, message, "use another name");
        }
        match self.of_owner.get(&owner.value).filter(|first| first.value != name.value) {
            Some(Located { value, line, .. }) => {
                document.fault(
                    &name,
                    format!("line {line} names this machine `{value}`"),
                    "remove one of the names",
                );
            }
            None => {
                self.owners.insert(name.value.clone(), owner.value);
                self.of_owner.entry(owner.value).or_insert(name);
            }
        }
    }
}

/// Parses the name, which its node gets.
fn name(document: &Document, table: &Table<'_>) -> Option<Located<String>> {
    let name = table.string("name")?;
    if is_host_name(&name) && !is_reserved_host_name(&name) {
        return Some(name);
    }
    let message = format!("`{}` is not a valid host name", brief(&name));
    document.fault(
        &name,
        message,
        "use 1 to 63 of a-z, 0-9 and `-`, no IP address, no reserved name such as `localhost`",
    );
    None
}

fn owner(document: &Document, table: &Table<'_>) -> Option<Located<Owner>> {
    let mac = table.parsed::<MacAddr>("mac").map(|mac| mac.map(Owner::Mac));
    let node = table.parsed::<NodeId>("node").map(|node| node.map(Owner::Node));
    let hint =
        "write mac = \"52:54:00:00:00:01\", or node = the node ID that `meshd node list` shows";
    match (table.has("mac"), table.has("node")) {
        (true, true) => table.fault("node", "conflicts with a MAC address", "keep one of the two"),
        (false, false) => document.fault(&table.own_position(), "has no owner", hint),
        _ => {}
    }
    if let Some(Located { value: Owner::Mac(address), .. }) = &mac
        && address.is_multicast()
    {
        table.fault("mac", format!("`{address}` is a multicast address"), hint);
    }
    mac.or(node)
}

/// Returns the parent of a virtual interface; `None` after a fault.
fn parent(table: &Table<'_>) -> Option<Option<MacAddr>> {
    if !table.has("parent") {
        return Some(None);
    }
    if !table.has("mac") {
        table.fault(
            "parent",
            "belongs to a MAC address",
            "write mac = the address of the virtual interface",
        );
    }
    let parent = table.parsed::<MacAddr>("parent")?.value;
    if parent.is_multicast() {
        table.fault(
            "parent",
            format!("`{parent}` is a multicast address"),
            "write the address of the node's NIC",
        );
    }
    Some(Some(parent))
}

fn address(
    document: &Document,
    table: &Table<'_>,
    segments: &Segments,
    subnets: Option<&[&Subnet]>,
) -> Option<Located<Ipv4Addr>> {
    let address = table.ipv4("address");
    if address.is_none() && !table.has("address") && !table.has("name") {
        document.fault(
            &table.own_position(),
            "reserves neither an address nor a name",
            "write address = \"10.77.0.20\"",
        );
    }
    let address = address?;
    if let Some(owner) = segments.owner_of(address.value) {
        document.fault(
            &address,
            format!("{} is the address of {owner}", address.value),
            "write another one",
        );
    }
    match subnets.map(|subnets| subnets.iter().find(|subnet| subnet.is_on_network(address.value))) {
        Some(None) => {
            let message =
                format!("{} is in the network of no segment that leases addresses", address.value);
            document.fault(&address, message, "write an address of the network of a range");
        }
        Some(Some(subnet)) if [subnet.network(), subnet.broadcast()].contains(&address.value) => {
            let message =
                format!("{} is the network or the broadcast address of its network", address.value);
            document.fault(&address, message, "write another one");
        }
        _ => {}
    }
    Some(address)
}
