//! `[[reservation]]`: fixed addresses of machines.

use super::segment::Segments;
use crate::{
    Owner, Pool, Reservation, check,
    reader::{At, Document, Table},
};
use meshd_types::{MacAddr, NodeId};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Most reservations of a site.
const MAX_RESERVATIONS: usize = 16_384;

/// Reads all; records what is wrong with each, and between them and the segments.
pub(crate) fn read(document: &Document, root: &Table<'_>, segments: &Segments) -> Option<Vec<Reservation>> {
    let tables = root.tables("reservation");
    if tables.len() > MAX_RESERVATIONS {
        root.fault("reservation", format!("{} reservations", tables.len()), format!("at most {MAX_RESERVATIONS}"));
        return None;
    }
    let pools = segments.pools();
    let (mut addresses, mut owners) = (BTreeMap::new(), BTreeMap::new());
    let read = |table: &Table<'_>| {
        let (owner, address) = (owner(document, table), address(document, table, segments, pools.as_deref()));
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
            document.fault(address, message, "an address is one machine's");
        }
        let (owner, address) = (owner?, address?);
        // One machine may have an address in each network that it is moved between.
        let network = pools.iter().flatten().position(|pool| pool.is_on_network(address.value));
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
        (true, true) => table.fault("node", "stands beside a MAC address", "keep one of the two"),
        (false, false) => document.fault(&table.here(), "says not for which machine", hint),
        _ => {}
    }
    if let Some(At { value: Owner::Mac(address), .. }) = &mac
        && address.is_multicast()
    {
        table.fault("mac", format!("`{address}` is a group's address"), hint);
    }
    mac.or(node)
}

fn address(
    document: &Document,
    table: &Table<'_>,
    segments: &Segments,
    pools: Option<&[&Pool]>,
) -> Option<At<Ipv4Addr>> {
    let address = table.required("address", table.ipv4("address"), "write address = \"10.77.0.20\"")?;
    if let Some(owner) = segments.owner_of(address.value) {
        document.fault(&address, format!("{} is the address of {owner}", address.value), "write another one");
    }
    match pools.map(|pools| pools.iter().find(|pool| pool.is_on_network(address.value))) {
        Some(None) => {
            let message = format!("{} is in the network of no segment that leases addresses", address.value);
            document.fault(&address, message, "write an address of the network of a range");
        }
        Some(Some(pool)) if [pool.network(), pool.broadcast()].contains(&address.value) => {
            let message = format!("{} is the network or the broadcast address of its network", address.value);
            document.fault(&address, message, "write another one");
        }
        _ => {}
    }
    Some(address)
}
