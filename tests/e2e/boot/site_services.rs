//! What a rack that was there before meshd has: a DHCP server of the site's own, a router with a
//! relay and a network behind it.

use crate::racks::OrEnd;
use meshd_lab::{Neighbour, Rack};
use std::{fs, net::Ipv4Addr, path::PathBuf, process::Command};

/// The site's DHCP server: on the segment, outside of the range that it leases.
const DNSMASQ: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const RANGE: &str = "10.77.0.40,10.77.0.60,1h";

/// The router between the rack's network and one that meshd has no interface on.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
/// The router's address on the far network: what a relay writes into giaddr.
pub const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 254);
const FAR_PREFIX_LEN: u8 = 24;
const FAR_NETWORK: &str = "10.78.0.0/24";
const FAR_BRIDGE: &str = "br1";

/// dnsmasq as it stands in many racks: it leases addresses and knows nothing of booting.
pub struct SiteDhcp {
    _machine: Neighbour,
    leases: PathBuf,
}

impl SiteDhcp {
    pub fn start(rack: &Rack) -> Self {
        let mut machine = rack.neighbour("dhcp", DNSMASQ).or_end();
        let leases = rack.dir().join("dnsmasq.leases");
        let mut command = Command::new("/usr/sbin/dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--log-facility=-",
            "--log-dhcp",
            "--port=0",
        ]);
        // dnsmasq would give up root for a user who may not write into the rack's folder.
        command.args(["--user=root", "--interface=eth0", "--bind-interfaces", "--pid-file="]);
        command
            .arg(format!("--dhcp-range={RANGE}"))
            .arg(format!("--dhcp-leasefile={}", leases.display()));
        machine.start(&mut command, &rack.dir().join("dnsmasq.log")).or_end();
        SiteDhcp { _machine: machine, leases }
    }

    /// The address that it leases to this MAC, by its own books.
    pub fn address(&self, mac: &str) -> Option<Ipv4Addr> {
        let books = fs::read_to_string(&self.leases).unwrap_or_default();
        let mut rows = books.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        rows.find_map(|row| (row.get(1) == Some(&mac)).then(|| row.get(2)?.parse().ok()).flatten())
    }
}

/// Puts a router with isc-dhcp-relay into the rack, and the nodes at these places onto the network
/// behind it, before they are powered on.
pub fn relay(rack: &Rack, places: &[u8]) -> Neighbour {
    let mut router = rack.neighbour("relay", ROUTER).or_end();
    let near = rack.namespace();
    let far = router.namespace();
    near.ip(&["link", "add", FAR_BRIDGE, "type", "bridge"]).or_end();
    near.ip(&["link", "add", "far0", "type", "veth", "peer", "name", "eth1", "netns", far.name()])
        .or_end();
    let taps: Vec<String> = places.iter().map(|place| format!("tap{place}")).collect();
    for port in taps.iter().map(String::as_str).chain(["far0"]) {
        near.ip(&["link", "set", port, "master", FAR_BRIDGE]).or_end();
        near.ip(&["link", "set", port, "up"]).or_end();
    }
    near.ip(&["link", "set", FAR_BRIDGE, "up"]).or_end();
    near.ip(&["route", "add", FAR_NETWORK, "via", &ROUTER.to_string()]).or_end();
    far.ip(&["address", "add", &format!("{RELAY}/{FAR_PREFIX_LEN}"), "dev", "eth1"]).or_end();
    far.ip(&["link", "set", "eth1", "up"]).or_end();
    let forward = || fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    // The file is that of the network namespace of whoever opens it.
    router.inside(forward).or_end().expect("the router forwards");

    let server = rack.site().segments[0].address.expect("the lab's site names it").to_string();
    let mut command = Command::new("/usr/sbin/dhcrelay");
    command
        .args(["-4", "-d", "-a", "-id", "eth1", "-iu", "eth0", "-pf"])
        .arg(rack.dir().join("relay.pid"))
        .arg(server);
    router.start(&mut command, &rack.dir().join("relay.log")).or_end();
    router
}
