//! `[net]` with `[dhcp]`, and `[[segment]]`: networks on which machines boot.

use super::dhcp::{self, Neighbours};
use crate::{
    DhcpMode, InterfaceNetwork, Link, Segment, Subnet, check,
    reader::{Document, Located, Table, checked},
};
use meshd_types::MacAddr;
use std::net::Ipv4Addr;

/// Each interface has its own sockets.
const MAX_SEGMENTS: usize = 256;
/// Redundant relays and routers need about four Ethernet addresses.
const MAX_RELAYS: usize = 16;

/// All segments with their positions, for checks between sections.
pub(crate) struct Segments(Vec<WrittenSegment>);

struct WrittenSegment {
    link: Option<Located<Link>>,
    mode: Option<DhcpMode>,
    /// Present even if the mode does not use it.
    subnet: Option<Located<Subnet>>,
    segment: Option<Segment>,
    /// `relay_mac` has a fault: then the segment may list too few.
    has_faulty_relay_macs: bool,
}

/// Reads all segments. `networks`: networks of the interfaces.
pub(crate) fn read(
    document: &Document,
    root: &Table<'_>,
    networks: &[InterfaceNetwork],
) -> Segments {
    let tables = root.tables("segment");
    root.is_within("segment", MAX_SEGMENTS, tables.len(), "segments");
    let mut all = Vec::new();
    let has_interface = tables.iter().any(|table| table.has("interface"));
    if !has_interface || root.has("net") || root.has("dhcp") {
        all.push(simple(document, root, networks));
    }
    all.extend(tables.iter().take(MAX_SEGMENTS).map(|table| section(document, table, networks)));
    let segments = Segments(all);
    segments.links_differ(document);
    segments.networks_differ(document);
    segments
}

/// Reads `[net]` and `[dhcp]`.
fn simple(document: &Document, root: &Table<'_>, networks: &[InterfaceNetwork]) -> WrittenSegment {
    let net = root.required(
        "net",
        root.table("net"),
        "say where machines boot: [net] interface = \"br0\"",
    );
    let address = net.as_ref().and_then(|net| machine_address(document, net, "address"));
    let name = net.and_then(|net| {
        let hint = "name it as `ip link` does: interface = \"br0\"";
        net.required("interface", net.string("interface"), hint)
    });
    let hint = "say who leases addresses: [dhcp] mode = \"authoritative\" | \"proxy\" | \"off\"";
    let (mode, subnet) = match root.required("dhcp", root.table("dhcp"), hint) {
        Some(table) => {
            let interface = name.as_ref().map(|name| name.value.as_str());
            dhcp::read(
                document,
                &table,
                Neighbours { server: address.as_ref(), relay: None, interface, networks },
            )
        }
        None => (None, None),
    };
    let interface = name.and_then(|name| interface(document, name));
    WrittenSegment::new(interface, address, mode, subnet)
}

/// Reads one `[[segment]]`.
fn section(
    document: &Document,
    table: &Table<'_>,
    networks: &[InterfaceNetwork],
) -> WrittenSegment {
    let name = table.string("interface");
    let relay = machine_address(document, table, "relay");
    match (table.has("interface"), table.has("relay")) {
        (true, true) => {
            let hint = "a segment has an interface or a relay: remove one";
            table.fault("relay", "conflicts with an interface", hint);
        }
        (false, false) => {
            let hint = "write interface = \"eth1\", or relay = \"10.88.0.1\" (the relay's address on that network)";
            document.fault(&table.own_position(), "has neither an interface nor a relay", hint);
        }
        _ => {}
    }
    let address = machine_address(document, table, "address");
    let interface_name = name.as_ref().map(|name| name.value.as_str());
    let server = address.as_ref();
    let relay_address = relay.as_ref();
    let neighbours =
        Neighbours { server, relay: relay_address, interface: interface_name, networks };
    let (mode, subnet) = dhcp::read(document, table, neighbours);
    let by_relay = relay.map(|relay| relay.map(Link::Relay));
    let link = name.and_then(|name| interface(document, name)).or(by_relay);
    let mut written = WrittenSegment::new(link, address, mode, subnet);
    let faults_before = document.fault_count();
    let relay_macs = relay_macs(document, table);
    written.has_faulty_relay_macs = document.fault_count() > faults_before;
    let redundant_relays = redundant_relays(document, table);
    if let Some(segment) = &mut written.segment {
        segment.relay_macs = relay_macs;
        segment.redundant_relays = redundant_relays;
    }
    written
}

/// Reads the Ethernet addresses of relayed packets.
fn relay_macs(document: &Document, table: &Table<'_>) -> Vec<MacAddr> {
    let written = strings_of_relay(table, "relay_mac");
    let read = |text: Located<String>| {
        let mac = text.value.parse();
        if mac.is_err() {
            let hint = "write the relay's address as `ip neigh` shows it: relay_mac = [\"52:54:00:12:34:56\"]";
            document.fault(&text, format!("`{}` is not a MAC address", text.value), hint);
        }
        mac.ok()
    };
    written.into_iter().filter_map(read).collect()
}

/// Reads the addresses of further relays.
fn redundant_relays(document: &Document, table: &Table<'_>) -> Vec<Ipv4Addr> {
    let read = |text: Located<String>| {
        let address: Option<Ipv4Addr> = text.value.parse().ok();
        let address = address.filter(is_host_address);
        if address.is_none() {
            let hint = "write the addresses that the relays have on the segment";
            document.fault(&text, format!("`{}` is not a host address", text.value), hint);
        }
        address
    };
    strings_of_relay(table, "redundant_relays").into_iter().filter_map(read).collect()
}

/// Reads a list that only a segment behind a relay has.
fn strings_of_relay(table: &Table<'_>, key: &str) -> Vec<Located<String>> {
    let written = table.strings(key);
    if !table.has("relay") && table.has(key) {
        table.fault(
            key,
            "there is no relay",
            "remove the key, or write relay = \"10.88.0.1\" in place of interface",
        );
    }
    if written.len() > MAX_RELAYS {
        let message = format!("{} addresses", written.len());
        table.fault(key, message, format!("write at most {MAX_RELAYS}"));
    }
    written
}

fn is_host_address(address: &Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_broadcast())
}

fn interface(document: &Document, name: Located<String>) -> Option<Located<Link>> {
    let position = name.with(());
    checked(document, name, check::interface).map(|name| position.with(Link::Interface(name)))
}

/// Reads a host address.
fn machine_address(document: &Document, table: &Table<'_>, key: &str) -> Option<Located<Ipv4Addr>> {
    let address = table.ipv4(key)?;
    if !is_host_address(&address) {
        let hint = match key {
            "relay" => "write the address that the relay has on the segment",
            _ => "write an address of this machine on that interface, or remove the key",
        };
        document.fault(&address, format!("`{}` is not a host address", address.value), hint);
        return None;
    }
    Some(address)
}

impl WrittenSegment {
    fn new(
        link: Option<Located<Link>>,
        address: Option<Located<Ipv4Addr>>,
        mode: Option<DhcpMode>,
        subnet: Option<Located<Subnet>>,
    ) -> Self {
        let leased = subnet
            .as_ref()
            .map(|subnet| subnet.value.clone())
            .filter(|_| mode == Some(DhcpMode::Authoritative));
        let sound = mode != Some(DhcpMode::Authoritative) || leased.is_some();
        let address = address.map(|address| address.value);
        let segment = link.as_ref().zip(mode).filter(|_| sound).map(|(link, mode)| Segment {
            link: link.value.clone(),
            address,
            mode,
            subnet: leased,
            relay_macs: Vec::new(),
            redundant_relays: Vec::new(),
        });
        WrittenSegment { link, mode, subnet, segment, has_faulty_relay_macs: false }
    }

    fn name(&self) -> String {
        self.link
            .as_ref()
            .map_or_else(|| "another segment".to_owned(), |link| link.value.to_string())
    }
}

impl Segments {
    /// Returns the segments if none has a fault.
    pub(crate) fn valid(self) -> Option<Vec<Segment>> {
        self.0.into_iter().map(|written| written.segment).collect()
    }

    /// Returns all subnets; `None` if a fault may hide one.
    pub(crate) fn subnets(&self) -> Option<Vec<&Subnet>> {
        let whole =
            self.0.iter().all(|written| written.mode.is_some() && written.segment.is_some());
        whole.then(|| {
            self.0
                .iter()
                .filter_map(|written| written.subnet.as_ref())
                .map(|subnet| &subnet.value)
                .collect()
        })
    }

    /// Returns false if no segment is behind a relay. A segment with faults may be.
    pub(crate) fn may_have_relay(&self) -> bool {
        let is_relay = |link: &Located<Link>| matches!(link.value, Link::Relay(_));
        self.0.iter().any(|segment| segment.link.as_ref().is_none_or(is_relay))
    }

    /// Returns a segment whose relay any machine may pose as, because it has no `relay_mac`.
    pub(crate) fn unproven_relay(&self) -> Option<&Segment> {
        let is_unproven = |segment: &&Segment| {
            matches!(segment.link, Link::Relay(_)) && segment.relay_macs.is_empty()
        };
        // One fault for one cause.
        let sound = self.0.iter().filter(|written| !written.has_faulty_relay_macs);
        sound.filter_map(|written| written.segment.as_ref()).find(is_unproven)
    }

    /// Returns the names of all segments and whether meshd leases addresses there; `None` if a
    /// fault may hide one.
    pub(crate) fn names(&self) -> Option<Vec<(String, bool)>> {
        let name = |written: &WrittenSegment| {
            let segment = written.segment.as_ref()?;
            Some((segment.name(), segment.mode == DhcpMode::Authoritative))
        };
        self.0.iter().map(name).collect()
    }

    /// Returns the addresses of meshd, relays and routers.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (Ipv4Addr, &'static str)> {
        self.0.iter().flat_map(|written| {
            let relay = match written.link.as_ref().map(|link| &link.value) {
                Some(Link::Relay(relay)) => Some(*relay),
                _ => None,
            };
            let server = written.segment.as_ref().and_then(|segment| segment.address);
            let router = written.subnet.as_ref().and_then(|subnet| subnet.router);
            let owners = [(relay, "the relay"), (server, "meshd"), (router, "the router")];
            owners.into_iter().filter_map(|(address, owner)| Some((address?, owner)))
        })
    }

    /// Returns the owner of an address.
    pub(crate) fn owner_of(&self, address: Ipv4Addr) -> Option<&'static str> {
        self.owners().find(|(owned, _)| *owned == address).map(|(_, owner)| owner)
    }

    fn links_differ(&self, document: &Document) {
        for (index, written) in self.0.iter().enumerate() {
            let Some(link) = &written.link else { continue };
            let earlier = self.0[..index].iter().filter_map(|other| other.link.as_ref());
            if let Some(other) = earlier.into_iter().find(|other| other.value == link.value) {
                let message = format!("line {} has this one too", other.line);
                document.fault(
                    link,
                    message,
                    "a segment has its own interface or relay; remove one of the two",
                );
            }
        }
    }

    /// meshd determines the segment of a machine from its address, so networks must not overlap.
    fn networks_differ(&self, document: &Document) {
        for (index, written) in self.0.iter().enumerate() {
            let Some(subnet) = &written.subnet else { continue };
            for other in &self.0[..index] {
                let Some(before) = &other.subnet else { continue };
                if !before.is_on_network(subnet.network())
                    && !subnet.is_on_network(before.network())
                {
                    continue;
                }
                let overlap = subnet.first <= before.last && before.first <= subnet.last;
                let what = if overlap { "overlaps the range" } else { "is in the network" };
                let message = format!("{what} of {}, line {}", other.name(), before.line);
                let hint = "segments must not overlap; set netmask if these are narrower";
                document.fault(subnet, message, hint);
            }
        }
    }
}
