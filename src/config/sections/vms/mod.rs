//! `[vms]`: IP and MAC addresses reserved for NICs of VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `mac_prefix` | a prefix of MAC addresses |
//! | `rules` | site-wide rules of `[vms]`: limits, placement and slot policies of VMs |

mod mac_prefix;
mod rules;

pub use mac_prefix::MacPrefix;
pub use rules::{SlotPolicy, VmRules};

use super::{dhcp, segment::Segments};
use crate::{
    Subnet,
    reader::{Document, Located, Table, or},
};
use mac_prefix::QEMU;
use meshd_proto::{InterfaceName, NetworkName};
use std::net::Ipv4Addr;

const MAX_POOLS: usize = 256;
/// Maximum octets of the MAC prefix: the other two distinguish 65,536 NICs.
const MAX_PREFIX: usize = 4;

/// `[vms]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vms {
    /// Prefix of generated MAC addresses.
    pub mac_prefix: MacPrefix,
    /// Pools for NICs without an address in their VM file, in the order of the file. Pools do not
    /// overlap.
    pub pools: Vec<VmAddressPool>,
    pub rules: VmRules,
}

/// One `[[vms.pool]]`: addresses for VMs in the subnet of a segment, outside its DHCP pool, without
/// addresses of meshd, relays and routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmAddressPool {
    /// Bridge of the NICs.
    pub bridge: InterfaceName,
    /// First address, inclusive.
    pub first: Ipv4Addr,
    /// Last address, inclusive.
    pub last: Ipv4Addr,
}

/// Reads `[vms]`; checks the pools against each other and the segments.
pub(crate) fn read(document: &Document, root: &Table<'_>, segments: &Segments) -> Option<Vms> {
    let Some(table) = root.table("vms") else { return (!root.has("vms")).then(Vms::default) };
    let prefix = table.parsed::<MacPrefix>("mac_prefix");
    if let Some(prefix) = &prefix {
        prefix_faults(document, prefix);
    }
    let tables = table.tables("pool");
    table.is_within("pool", MAX_POOLS, tables.len(), "pools");
    let subnets = segments.subnets();
    let mut written: Vec<Located<VmAddressPool>> = Vec::new();
    let mut whole = true;
    for table in tables.iter().take(MAX_POOLS) {
        let Some(pool) = pool(document, table) else {
            whole = false;
            continue;
        };
        check_segments(document, &pool, segments, subnets.as_deref());
        if let Some(other) =
            written.iter().find(|other| pool.first <= other.last && other.first <= pool.last)
        {
            let message = format!("overlaps the pool of line {}", other.line);
            document.fault(&pool, message, "shorten one of the two");
        }
        written.push(pool);
    }
    let mac_prefix = or(&table, "mac_prefix", prefix, MacPrefix::default());
    let rules = rules::read(document, &table);
    let pools = written.into_iter().map(|pool| pool.value).collect();
    whole.then_some(Vms { mac_prefix: mac_prefix?, pools, rules: rules? })
}

fn prefix_faults(document: &Document, prefix: &Located<MacPrefix>) {
    let octets = prefix.octets();
    if octets.len() > MAX_PREFIX {
        let message = format!("leaves {} octet for all NICs of the site", 6 - octets.len());
        document.fault(
            prefix,
            message,
            format!("write {MAX_PREFIX} octets at most, such as \"{QEMU}\""),
        );
    }
    if octets.first().is_some_and(|octet| octet & 1 == 1) {
        document.fault(
            prefix,
            "is a multicast prefix",
            format!("write an even first octet: \"{QEMU}\""),
        );
    }
}

/// Reads one `[[vms.pool]]`, with the position of its range.
fn pool(document: &Document, table: &Table<'_>) -> Option<Located<VmAddressPool>> {
    let hint = "name the bridge of the NICs: bridge = \"br0\"";
    let bridge = table.required("bridge", table.parsed::<InterfaceName>("bridge"), hint);
    let bridge = bridge.filter(|bridge| {
        let private = NetworkName::of_bridge(&bridge.value).is_private();
        if private {
            let hint = "remove the pool, or name a bridge of the site";
            document.fault(
                bridge,
                "is the private network of each node, which assigns its addresses",
                hint,
            );
        }
        !private
    });
    let hint = "write range = \"10.77.0.210-10.77.0.250\"";
    let range = table
        .required("range", table.string("range"), hint)
        .and_then(|text| dhcp::range(document, text));
    let bridge = bridge?.value;
    let range = range?;
    let (first, last) = range.value;
    Some(range.with(VmAddressPool { bridge, first, last }))
}

/// Checks a pool against the segments.
fn check_segments(
    document: &Document,
    pool: &Located<VmAddressPool>,
    segments: &Segments,
    networks: Option<&[&Subnet]>,
) {
    let VmAddressPool { first, last, .. } = pool.value;
    for (address, owner) in segments.owners() {
        if (first..=last).contains(&address) {
            document.fault(
                pool,
                format!("contains {address}, the address of {owner}"),
                "exclude it",
            );
        }
    }
    // A segment with a fault may hide the subnet.
    let Some(networks) = networks else { return };
    let Some(network) = networks.iter().find(|network| network.is_on_network(first)) else {
        let message = format!("{first} is in the network of no segment with a range");
        return document.fault(
            pool,
            message,
            "write addresses of the network of a range, outside that range",
        );
    };
    if !network.is_on_network(last) {
        let message = format!("{last} is not in the network of {first}");
        document.fault(pool, message, "keep a pool inside one network");
    }
    if first <= network.network() || last >= network.broadcast() {
        let message = "contains the network or the broadcast address of its network";
        document.fault(pool, message, "exclude the first and the last address of the network");
    }
    if first <= network.last && network.first <= last {
        let message =
            format!("overlaps the range {}-{}, the DHCP pool", network.first, network.last);
        document.fault(pool, message, "shorten one of the two");
    }
}

impl Vms {
    /// Returns the pools of a bridge, in the order of the file.
    pub fn pools_of(&self, bridge: &InterfaceName) -> impl Iterator<Item = &VmAddressPool> {
        self.pools.iter().filter(move |pool| pool.bridge == *bridge)
    }
}
