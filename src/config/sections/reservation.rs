//! `[[reservation]]`: fixed addresses of machines.

use super::segment::Segments;
use crate::{
    Owner, Reservation, Subnet, check,
    reader::{At, Document, Table},
};
use meshd_types::{MacAddr, NodeId};
use std::{collections::BTreeMap, net::Ipv4Addr};

const MAX_RESERVATIONS: usize = 16_384;

/// Reads all reservations; checks them against each other and the segments.
pub(crate) fn read(document: &Document, root: &Table<'_>, segments: &Segments) -> Option<Vec<Reservation>> {
    let tables = root.tables("reservation");
    if tables.len() > MAX_RESERVATIONS {
        root.fault("reservation", format!("{} reservations", tables.len()), format!("at most {MAX_RESERVATIONS}"));
        return None;
    }
    let subnets = segments.subnets();
    let (mut addresses, mut owners) = (BTreeMap::new(), BTreeMap::new());
    let read = |table: &Table<'_>| {
        let (owner, address) = (owner(document, table), address(document, table, segments, subnets.as_deref()));
        let name = table.string("name");
        if let Some(name) = &name
            && let Err(error) = check::name(name)
        {
            check::fault(document, name, &error);
        }
        if let Some(address) = &address
            && let Some(line) = addresses.insert(address.value, address.line)
        {
            let message = format!("{} is reserved on line {line} already", address.value);
            document.fault(address, message, "reserve another address");
        }
        let (owner, address) = (owner?, address?);
        // A machine may have one reservation in each network.
        let network = subnets.iter().flatten().position(|subnet| subnet.is_on_network(address.value));
        if let Some(network) = network
            && let Some(line) = owners.insert((owner.value, network), owner.line)
        {
            document.fault(&owner, format!("line {line} reserves an address of this network for it"), "remove one");
        }
        Some(Reservation { owner: owner.value, address: address.value, name: name.map(|name| name.value) })
    };
    tables.iter().map(read).collect::<Vec<_>>().into_iter().collect()
}

fn owner(document: &Document, table: &Table<'_>) -> Option<At<Owner>> {
    let mac = table.parsed::<MacAddr>("mac").map(|mac| mac.map(Owner::Mac));
    let node = table.parsed::<NodeId>("node").map(|node| node.map(Owner::Node));
    let hint = "write mac = \"52:54:00:00:00:01\", or node = the node ID that `meshd node list` shows";
    match (table.has("mac"), table.has("node")) {
        (true, true) => table.fault("node", "conflicts with a MAC address", "keep one of the two"),
        (false, false) => document.fault(&table.here(), "has no owner", hint),
        _ => {}
    }
    if let Some(At { value: Owner::Mac(address), .. }) = &mac
        && address.is_multicast()
    {
        table.fault("mac", format!("`{address}` is a multicast address"), hint);
    }
    mac.or(node)
}

fn address(
    document: &Document,
    table: &Table<'_>,
    segments: &Segments,
    subnets: Option<&[&Subnet]>,
) -> Option<At<Ipv4Addr>> {
    let address = table.required("address", table.ipv4("address"), "write address = \"10.77.0.20\"")?;
    if let Some(owner) = segments.owner_of(address.value) {
        document.fault(&address, format!("{} is the address of {owner}", address.value), "write another one");
    }
    match subnets.map(|subnets| subnets.iter().find(|subnet| subnet.is_on_network(address.value))) {
        Some(None) => {
            let message = format!("{} is in the network of no segment that leases addresses", address.value);
            document.fault(&address, message, "write an address of the network of a range");
        }
        Some(Some(subnet)) if [subnet.network(), subnet.broadcast()].contains(&address.value) => {
            let message = format!("{} is the network or the broadcast address of its network", address.value);
            document.fault(&address, message, "write another one");
        }
        _ => {}
    }
    Some(address)
}
