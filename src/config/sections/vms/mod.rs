//! `[vms]`: IP and MAC addresses reserved for NICs of virtual machines; `rules` holds the site-wide rules.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `rules` | site-wide rules of `[vms]`: limits, placement and slot policies of virtual machines |

mod rules;

pub use rules::{SlotPolicy, VmRules};

use super::{dhcp, segment::Segments};
use crate::{
    MacPrefix, Pool,
    parse::or,
    reader::{At, Document, Table},
};
use meshd_proto::vm::{InterfaceName, PRIVATE_BRIDGE};
use meshd_types::MacAddr;
use std::net::Ipv4Addr;

/// Most pools of a site.
const MAX_POOLS: usize = 256;
/// Octets of a MAC address that the site may say: two are left, which are 65,536 cards.
const MAX_PREFIX: usize = 4;
/// What QEMU's machines are known by.
const QEMU: &str = "52:54:00";

/// `[vms]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vms {
    /// How the MAC addresses begin that meshd makes.
    pub mac_prefix: MacPrefix,
    /// Where a card's address comes from if its file names none, in the order of the file. No two overlap.
    pub pools: Vec<VmPool>,
    /// What holds for all machines.
    pub rules: VmRules,
}

/// One `[[vms.pool]]`. It lies in the network of a segment, outside of its range, and holds neither meshd, nor relay, nor router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPool {
    /// The bridge of nodes whose cards get one.
    pub bridge: InterfaceName,
    /// First address, inclusive.
    pub first: Ipv4Addr,
    /// Last address, inclusive.
    pub last: Ipv4Addr,
}

impl Default for MacPrefix {
    fn default() -> Self {
        QEMU.parse().expect("it is how a MAC address begins")
    }
}

/// Reads it; records what is wrong with each pool, and between them and the segments.
pub(crate) fn read(document: &Document, root: &Table<'_>, segments: &Segments) -> Option<Vms> {
    let Some(table) = root.table("vms") else { return (!root.has("vms")).then(Vms::default) };
    let prefix = table.parsed::<MacPrefix>("mac_prefix");
    if let Some(prefix) = &prefix {
        prefix_faults(document, prefix);
    }
    let tables = table.tables("pool");
    if tables.len() > MAX_POOLS {
        table.fault("pool", format!("{} pools", tables.len()), format!("at most {MAX_POOLS}"));
    }
    let pools = segments.pools();
    let mut written: Vec<At<VmPool>> = Vec::new();
    let mut whole = true;
    for table in tables.iter().take(MAX_POOLS) {
        let Some(pool) = pool(document, table) else {
            whole = false;
            continue;
        };
        beside_segments(document, &pool, segments, pools.as_deref());
        if let Some(other) = written.iter().find(|other| pool.first <= other.last && other.first <= pool.last) {
            let message = format!("overlaps the pool of line {}", other.line);
            document.fault(&pool, message, "an address is of one pool; shorten one of the two");
        }
        written.push(pool);
    }
    let (mac_prefix, rules) = (or(&table, "mac_prefix", prefix, MacPrefix::default()), rules::read(document, &table));
    let pools = written.into_iter().map(|pool| pool.value).collect();
    whole.then_some(Vms { mac_prefix: mac_prefix?, pools, rules: rules? })
}

fn prefix_faults(document: &Document, prefix: &At<MacPrefix>) {
    let octets = prefix.octets();
    if octets.len() > MAX_PREFIX {
        let message = format!("leaves {} octet for all cards of the site", 6 - octets.len());
        document.fault(prefix, message, format!("write {MAX_PREFIX} octets at most, such as \"{QEMU}\""));
    }
    if octets.first().is_some_and(|octet| octet & 1 == 1) {
        document.fault(prefix, "is how groups' addresses begin", format!("write an even first octet: \"{QEMU}\""));
    }
}

/// One `[[vms.pool]]`, where its range stands.
fn pool(document: &Document, table: &Table<'_>) -> Option<At<VmPool>> {
    let hint = "name the bridge of nodes on which the cards are: bridge = \"br0\"";
    let bridge = table.required("bridge", table.parsed::<InterfaceName>("bridge"), hint);
    let bridge = bridge.filter(|bridge| {
        let private = bridge.value.as_str() == PRIVATE_BRIDGE;
        if private {
            let hint = "there each node gives the addresses; remove the pool, or name a bridge of the site";
            document.fault(bridge, "is the private network of each node", hint);
        }
        !private
    });
    let hint = "write range = \"10.77.0.210-10.77.0.250\"";
    let range = table.required("range", table.string("range"), hint).and_then(|text| dhcp::range(document, text));
    let (bridge, range) = (bridge?.value, range?);
    let (first, last) = range.value;
    Some(range.with(VmPool { bridge, first, last }))
}

/// What holds between a pool and the networks of the site.
fn beside_segments(document: &Document, pool: &At<VmPool>, segments: &Segments, networks: Option<&[&Pool]>) {
    let VmPool { first, last, .. } = pool.value;
    for (address, owner) in segments.owners() {
        if (first..=last).contains(&address) {
            document.fault(pool, format!("holds {address}, the address of {owner}"), "leave it out");
        }
    }
    // A segment with a fault may be the one that is missing.
    let Some(networks) = networks else { return };
    let Some(network) = networks.iter().find(|network| network.is_on_network(first)) else {
        let message = format!("{first} is in the network of no segment with a range");
        return document.fault(pool, message, "write addresses of the network of a range, beside that range");
    };
    if !network.is_on_network(last) {
        let message = format!("{last} is not in the network of {first}");
        document.fault(pool, message, "keep a pool inside of one network");
    }
    if first <= network.network() || last >= network.broadcast() {
        let message = "holds the network or the broadcast address of its network";
        document.fault(pool, message, "leave the first and the last address of the network out");
    }
    if first <= network.last && network.first <= last {
        let message = format!("overlaps the range {}-{}, which is leased to anybody", network.first, network.last);
        document.fault(pool, message, "shorten one of the two: an address is either leased or kept for a machine");
    }
}

impl Vms {
    /// The pools of a bridge, in the order of the file.
    pub fn pools_of(&self, bridge: &InterfaceName) -> impl Iterator<Item = &VmPool> {
        self.pools.iter().filter(move |pool| pool.bridge == *bridge)
    }
}

impl MacPrefix {
    /// The octets that are said.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// An address that begins so and goes on with these octets, as far as there is room.
    pub fn with(&self, rest: &[u8]) -> MacAddr {
        let mut octets = [0; 6];
        octets.iter_mut().zip(self.0.iter().chain(rest)).for_each(|(octet, value)| *octet = *value);
        MacAddr(octets)
    }
}
