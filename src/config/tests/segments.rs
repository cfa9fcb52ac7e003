//! Tests of segments and reservations.

use super::*;
use std::net::Ipv4Addr;

const MORE: &str = r#"
[[segment]]
interface = "eth1"
address = "10.1.0.1"
range = "10.1.0.100-10.1.0.200"
router = "10.1.0.254"
[[segment]]
relay = "10.88.0.1"
range = "10.88.0.100-10.88.3.200"
netmask = "255.255.252.0"
lease = "30m"
domain = "rack-b.example"
[[segment]]
relay = "10.99.0.1"
relay_mac = ["52:54:00:00:99:01", "52:54:00:00:99:02"]
mode = "proxy"
[[reservation]]
mac = "52-54-00-00-00-01"
address = "10.0.0.20"
name = "head"
[[reservation]]
node = "0123abcd"
address = "10.88.1.5"
[[reservation]]
mac = "52:54:00:00:00:01"
address = "10.88.1.6"
"#;

#[test]
fn segments_follow_the_simple_segment_in_file_order() {
    let site = valid(edited(MORE, "", ""));
    let names: Vec<String> = site.segments.iter().map(Segment::name).collect();
    assert_eq!(names, ["br0", "eth1", "relay-10.88.0.1", "relay-10.99.0.1"]);
    let subnet = site.segments[2].subnet.as_ref().expect("it leases");
    assert_eq!(
        (subnet.prefix_len, subnet.lease.as_secs(), subnet.domain.as_deref()),
        (22, 1800, Some("rack-b.example"))
    );
    assert_eq!(
        (subnet.network(), subnet.broadcast()),
        (Ipv4Addr::new(10, 88, 0, 0), Ipv4Addr::new(10, 88, 3, 255))
    );
    assert_eq!((site.segments[3].mode, &site.segments[3].subnet), (DhcpMode::Proxy, &None));
    let relays: Vec<String> = site.segments[3].relay_macs.iter().map(ToString::to_string).collect();
    assert_eq!(relays, ["52:54:00:00:99:01", "52:54:00:00:99:02"]);
    let whom: Vec<Owner> = site.reservations.iter().map(|reservation| reservation.owner).collect();
    let mac = Owner::Mac("52:54:00:00:00:01".parse().expect("a MAC address"));
    assert_eq!(whom, [mac, Owner::Node("0123abcd".parse().expect("a node ID")), mac]);
    assert_eq!(site.node_names, [(mac, "head".to_owned())].into());
}

#[test]
fn simple_segment_is_optional_if_another_has_an_interface() {
    let bare = LEAST
        .replace("[net]\ninterface = \"br0\"\n[dhcp]\nrange = \"10.0.0.100-10.0.0.200\"\n", "");
    let segment =
        |link: &str| format!("{bare}[[segment]]\n{link}\nrange = \"10.0.0.100-10.0.0.200\"\n");
    let site = valid(read(&segment("interface = \"eth1\"")));
    assert_eq!(site.segments[0].interface(), Some("eth1"));
    for text in [segment("relay = \"10.0.0.1\""), bare] {
        let faults =
            read(&text).expect_err("no interface receives the packets of the relay").to_string();
        assert!(
            faults.contains("net: is required") && faults.contains("dhcp: is required"),
            "{faults}"
        );
    }
}

#[test]
fn conflicting_segments_and_reservations_are_refused_with_both_positions() {
    for (change, with, fault) in [
        ("\"eth1\"", "\"br0\"", "14 segment[0].interface: line 5 has this one too"),
        ("10.99.0.1", "10.88.0.1", "25 segment[2].relay: line 19 has this one too"),
        (
            "10.1.0.100-10.1.0.200",
            "10.0.0.150-10.0.0.250",
            "16 segment[0].range: overlaps the range of br0, line 7",
        ),
        (
            "10.1.0.100-10.1.0.200",
            "10.0.0.20-10.0.0.30",
            "16 segment[0].range: is in the network of br0, line 7",
        ),
        ("10.88.0.1\"", "10.77.0.1\"", "19 segment[1].relay: 10.77.0.1 is not in 10.88.0.0/22"),
        (
            "10.88.0.1\"",
            "10.88.0.100\"",
            "20 segment[1].range: holds 10.88.0.100, the address of the relay",
        ),
        ("10.88.0.1\"", "224.0.0.1\"", "19 segment[1].relay: `224.0.0.1` is not a host address"),
        ("relay = \"10.99.0.1\"", "", "24 segment[2]: has neither an interface nor a relay"),
        (
            "relay = \"10.99.0.1\"",
            "relay = \"10.99.0.1\"\ninterface = \"eth9\"",
            "25 segment[2].relay: conflicts with an interface",
        ),
        (
            "52:54:00:00:99:02",
            "10.99.0.1",
            "26 segment[2].relay_mac[1]: `10.99.0.1` is not a MAC address",
        ),
        (
            "address = \"10.1.0.1\"",
            "relay_mac = [\"52:54:00:00:99:01\"]",
            "15 segment[0].relay_mac: there is no relay",
        ),
        ("mode = \"proxy\"", "", "24 segment[2].range: is required"),
        (
            "10.88.1.5",
            "10.0.0.20",
            "34 reservation[1].address: 10.0.0.20 is reserved on line 30 already",
        ),
        (
            "10.88.1.5",
            "10.88.0.1",
            "34 reservation[1].address: 10.88.0.1 is the address of the relay",
        ),
        (
            "10.88.1.5",
            "10.1.0.254",
            "34 reservation[1].address: 10.1.0.254 is the address of the router",
        ),
        (
            "10.88.1.5",
            "10.88.4.5",
            "34 reservation[1].address: 10.88.4.5 is in the network of no segment that leases addresses",
        ),
        (
            "10.88.1.5",
            "10.88.3.255",
            "34 reservation[1].address: 10.88.3.255 is the network or the broadcast address of its network",
        ),
        (
            "10.88.1.6",
            "10.0.0.21",
            "36 reservation[2].mac: line 29 reserves an address of this network for it",
        ),
        ("node = \"0123abcd\"", "", "32 reservation[1]: has no owner"),
        ("node = \"0123abcd\"", "node = \"il\"", "33 reservation[1].node: `il` is not a node ID"),
        (
            "name = \"head\"",
            "parent = \"01:00:5e:00:00:01\"",
            "31 reservation[0].parent: `01:00:5e:00:00:01` is a multicast address",
        ),
        (
            "node = \"0123abcd\"",
            "node = \"0123abcd\"\nparent = \"52:54:00:00:00:02\"",
            "34 reservation[1].parent: belongs to a MAC address",
        ),
        ("52-54", "53-54", "29 reservation[0].mac: `53:54:00:00:00:01` is a multicast address"),
        (
            "address = \"10.88.1.5\"",
            "",
            "32 reservation[1]: reserves neither an address nor a name",
        ),
        ("\"head\"", "\"a head\"", "31 reservation[0].name: `a head` is not a valid host name"),
        (
            "\"10.88.1.5\"",
            "\"10.88.1.5\"\nname = \"head\"",
            "35 reservation[1].name: `head` is the name of another machine, line 31",
        ),
        (
            "\"10.88.1.6\"",
            "\"10.88.1.6\"\nname = \"tail\"",
            "38 reservation[2].name: line 31 names this machine `head`",
        ),
    ] {
        let found = described(edited(MORE, change, with));
        assert!(found.iter().any(|found| found == fault), "{change} -> {with}: {found:#?}");
    }
}

#[test]
fn redundant_relays_are_addresses_of_a_segment_behind_a_relay() {
    let more = |line: &str| edited(MORE, "mode = \"proxy\"", &format!("mode = \"proxy\"\n{line}"));
    let site = valid(more("redundant_relays = [\"10.99.0.2\", \"10.99.0.3\"]"));
    let expected = [Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 3)];
    assert_eq!(site.segments[3].redundant_relays, expected);
    let direct = edited(MORE, "address = \"10.1.0.1\"", "redundant_relays = [\"10.99.0.2\"]");
    assert_eq!(described(direct), ["15 segment[0].redundant_relays: there is no relay"]);
    let group = described(more("redundant_relays = [\"224.0.0.1\"]"));
    assert!(
        group[0].ends_with("redundant_relays[0]: `224.0.0.1` is not a host address"),
        "{group:?}"
    );
}

#[test]
fn reservation_of_a_name_needs_no_address_and_may_repeat_with_one() {
    let named = valid(edited(MORE, "address = \"10.88.1.5\"", "name = \"tail\""));
    assert_eq!(named.reservations.len(), 2);
    assert_eq!(named.node_names[&Owner::Node("0123abcd".parse().expect("a node ID"))], "tail");
    let again = valid(edited(MORE, "\"10.88.1.6\"", "\"10.88.1.6\"\nname = \"head\""));
    assert_eq!((again.reservations.len(), again.node_names.len()), (3, 1));
}

#[test]
fn invalid_segment_causes_no_fault_in_reservations() {
    let faults = edited(MORE, "10.88.0.100-10.88.3.200", "10.88.0.100").expect_err("no range").0;
    assert_eq!(faults.len(), 1, "{faults:#?}");
}

#[test]
fn omitted_netmask_is_taken_from_interface_network() {
    let network = |interface: &str, address: [u8; 4], prefix_len| InterfaceNetwork {
        interface: interface.to_owned(),
        address: address.into(),
        prefix_len,
    };
    let networks = [network("eth1", [10, 1, 0, 1], 16), network("eth1", [192, 168, 0, 1], 28)];
    let prefix = |text: &str| {
        let site = valid(parse_with(text, Path::new("site.toml"), &networks));
        let segment =
            site.segments.iter().find(|segment| segment.interface() == Some("eth1")).expect("eth1");
        segment.subnet.as_ref().expect("a subnet").prefix_len
    };
    let text = format!("{LEAST}{MORE}");
    assert_eq!(prefix(&text), 16);
    let written = text.replacen("router = \"10.1.0.254\"", "netmask = \"255.255.255.0\"", 1);
    assert_eq!(prefix(&written), 24, "the netmask of the file takes precedence");
}
