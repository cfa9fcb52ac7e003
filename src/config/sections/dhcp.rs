//! `[dhcp]` and the same keys of `[[segment]]`: DHCP mode, subnets and lease options.

use crate::{
    DhcpMode, InterfaceNetwork, Subnet, check, interfaces,
    reader::{Document, Located, Table, or},
};
use std::{net::Ipv4Addr, ops::RangeInclusive, time::Duration};

/// Bounds of `[dhcp].lease`.
const LEASE: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(30 * 86_400);
/// Maximum size of a pool: a /16.
const MAX_POOL: u32 = 65_536;
/// Permitted prefix lengths.
const PREFIX: RangeInclusive<u8> = 8..=30;
/// Prefix length if neither the file nor an interface defines one.
const DEFAULT_PREFIX: u8 = 24;
/// Maximum number of DNS and of NTP servers in a lease.
const MAX_SERVERS: usize = 8;

/// First and last address.
type Range = (Ipv4Addr, Ipv4Addr);

/// Other addresses and networks of a segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Neighbours<'a> {
    /// Address of meshd; behind a relay it may be outside the subnet.
    pub(crate) server: Option<&'a Located<Ipv4Addr>>,
    pub(crate) relay: Option<&'a Located<Ipv4Addr>>,
    pub(crate) interface: Option<&'a str>,
    /// Networks of all interfaces.
    pub(crate) networks: &'a [InterfaceNetwork],
}

impl Neighbours<'_> {
    /// Returns the prefix length of the interface network that contains the address.
    fn prefix(&self, address: Ipv4Addr) -> Option<u8> {
        let prefix = interfaces::prefix_of(self.networks, self.interface?, address)?;
        PREFIX.contains(&prefix).then_some(prefix)
    }
}

/// Reads mode and subnet from `[dhcp]` or `[[segment]]`. A subnet is also checked in modes that do
/// not use it.
pub(crate) fn read(
    document: &Document,
    dhcp: &Table<'_>,
    neighbours: Neighbours<'_>,
) -> (Option<DhcpMode>, Option<Located<Subnet>>) {
    let words = [
        ("authoritative", DhcpMode::Authoritative),
        ("proxy", DhcpMode::Proxy),
        ("off", DhcpMode::Off),
    ];
    let mode = or(dhcp, "mode", dhcp.choice("mode", &words), DhcpMode::Authoritative);
    let range = dhcp.string("range").and_then(|text| range(document, text));
    if mode == Some(DhcpMode::Authoritative) {
        let hint = "write range = \"10.77.0.100-10.77.0.200\", or mode = \"proxy\" if another server leases";
        dhcp.required("range", range.as_ref(), hint);
    }
    let default =
        range.as_ref().and_then(|range| neighbours.prefix(range.0)).unwrap_or(DEFAULT_PREFIX);
    let prefix = prefix(document, dhcp, default);
    let lease = or(dhcp, "lease", dhcp.duration("lease", LEASE), Duration::from_secs(3600));
    let router = dhcp.ipv4("router");
    let dns = servers(dhcp, "dns");
    let ntp = servers(dhcp, "ntp");
    let domain = dhcp.string("domain");
    if let Some(domain) = &domain
        && let Err(error) = check::name(domain)
    {
        document.error(domain, &error);
    }
    if let (Some(range), Some(prefix)) = (&range, prefix) {
        subnet(document, range, prefix, neighbours, router.as_ref());
    }
    let subnet = range.zip(prefix).zip(lease).map(|((range, prefix_len), lease)| {
        range.map(|(first, last)| Subnet {
            first,
            last,
            prefix_len,
            lease,
            router: router.map(|router| router.value),
            dns,
            ntp,
            domain: domain.map(|domain| domain.value),
        })
    });
    (mode, subnet)
}

fn servers(dhcp: &Table<'_>, key: &str) -> Vec<Ipv4Addr> {
    let servers = dhcp.ipv4s(key);
    dhcp.is_within(key, MAX_SERVERS, servers.len(), "servers");
    servers.into_iter().map(|server| server.value).collect()
}

/// Parses a range of addresses: `10.77.0.100-10.77.0.200`.
pub(crate) fn range(document: &Document, text: Located<String>) -> Option<Located<Range>> {
    let parts =
        text.split_once('-').map(|(first, last)| (first.trim().parse(), last.trim().parse()));
    let Some((Ok(first), Ok(last))) = parts else {
        let message = format!("`{}` is not a range of addresses", crate::reader::brief(&text));
        document.fault(
            &text,
            message,
            "write the first and the last address: \"10.77.0.100-10.77.0.200\"",
        );
        return None;
    };
    let (low, high): (u32, u32) = (Ipv4Addr::into(first), Ipv4Addr::into(last));
    if low > high {
        document.fault(
            &text,
            format!("ends before it begins: {last} is below {first}"),
            "swap the two",
        );
        return None;
    }
    if high - low >= MAX_POOL {
        document.fault(
            &text,
            format!("holds {} addresses", u64::from(high - low) + 1),
            format!("at most {MAX_POOL}"),
        );
        return None;
    }
    Some(text.with((first, last)))
}

fn prefix(document: &Document, dhcp: &Table<'_>, default: u8) -> Option<u8> {
    let Some(mask) = dhcp.ipv4("netmask") else { return (!dhcp.has("netmask")).then_some(default) };
    let bits = u32::from(mask.value);
    let length = bits.leading_ones();
    if bits.count_ones() != length
        || !u8::try_from(length).is_ok_and(|length| PREFIX.contains(&length))
    {
        let hint = "write one from 255.0.0.0 to 255.255.255.252, such as 255.255.255.0";
        document.fault(&mask, format!("`{}` is not a netmask of a rack", mask.value), hint);
        return None;
    }
    u8::try_from(length).ok()
}

/// Checks that range, server, relay and router fit into one subnet.
fn subnet(
    document: &Document,
    range: &Located<Range>,
    prefix: u8,
    neighbours: Neighbours<'_>,
    router: Option<&Located<Ipv4Addr>>,
) {
    let (first, last) = range.value;
    let mask = u32::MAX << (32 - u32::from(prefix));
    let network = u32::from(first) & mask;
    let subnet = format!("{}/{prefix}", Ipv4Addr::from(network));
    if u32::from(last) & mask != network {
        let hint = "keep the range inside one subnet, or write a wider netmask";
        document.fault(range, format!("{last} is not in {subnet}, where {first} is"), hint);
        return;
    }
    if u32::from(first) == network || u32::from(last) == (network | !mask) {
        let message = format!("holds the network or the broadcast address of {subnet}");
        document.fault(range, message, "leave the first and the last address of the subnet out");
    }
    let Neighbours { server, relay, .. } = neighbours;
    for (what, address) in [("meshd", server), ("the relay", relay), ("the router", router)] {
        let Some(address) = address else { continue };
        let number = u32::from(address.value);
        let routed = what == "meshd" && relay.is_some();
        if number & mask != network && !routed {
            let hint = "it must be in the subnet of the range; set netmask if that is wider";
            document.fault(address, format!("{} is not in {subnet}", address.value), hint);
        } else if (u32::from(first)..=u32::from(last)).contains(&number) {
            document.fault(
                range,
                format!("holds {}, the address of {what}", address.value),
                "leave it out",
            );
        }
    }
}
