//! Tests of VM address pools in `[vms]`.

use super::*;
use crate::vm::derived_mac;
use meshd_types::{MacAddr, SystemUuid};
use std::net::Ipv4Addr;

/// Behind `LEAST`, whose last line is 11.
const MORE: &str = r#"[[segment]]
relay = "10.88.0.1"
range = "10.88.0.100-10.88.0.200"
router = "10.88.0.254"
[vms]
mac_prefix = "02:4d:45"
[[vms.pool]]
bridge = "br0"
range = "10.0.0.210-10.0.0.250"
[[vms.pool]]
bridge = "br0"
range = "10.0.0.20-10.0.0.29"
[[vms.pool]]
bridge = "br1"
range = "10.88.0.210-10.88.0.250"
"#;

#[test]
fn vm_pools_are_grouped_by_bridge_in_file_order() {
    let site = valid(edited(MORE, "", ""));
    let firsts = |bridge: &str| -> Vec<Ipv4Addr> {
        site.vms.pools_of(&bridge.parse().expect("a name")).map(|pool| pool.first).collect()
    };
    assert_eq!(firsts("br0"), [Ipv4Addr::new(10, 0, 0, 210), Ipv4Addr::new(10, 0, 0, 20)]);
    assert_eq!((firsts("br1").len(), firsts("br2").len()), (1, 0));
    assert_eq!(site.vms.mac_prefix.octets(), [0x02, 0x4d, 0x45]);
    let none = valid(read(LEAST)).vms;
    assert_eq!((none.pools.len(), none.mac_prefix.octets()), (0, &[0x52, 0x54, 0x00][..]));
}

#[test]
fn vm_pool_overlapping_or_outside_segment_is_refused_with_position() {
    for (change, with, fault) in [
        (
            "10.0.0.210-10.0.0.250",
            "10.0.0.190-10.0.0.250",
            "20 vms.pool[0].range: overlaps the range 10.0.0.100-10.0.0.200",
        ),
        (
            "10.0.0.210-10.0.0.250",
            "10.0.0.22-10.0.0.90",
            "23 vms.pool[1].range: overlaps the pool of line 20",
        ),
        (
            "10.0.0.210-10.0.0.250",
            "10.0.0.210-10.0.1.9",
            "20 vms.pool[0].range: 10.0.1.9 is not in the network of 10.0.0.210",
        ),
        (
            "10.0.0.210-10.0.0.250",
            "10.0.0.210-10.0.0.255",
            "20 vms.pool[0].range: contains the network or the broadcast address",
        ),
        (
            "10.0.0.210-10.0.0.250",
            "10.9.0.210-10.9.0.250",
            "20 vms.pool[0].range: 10.9.0.210 is in the network of no segment",
        ),
        (
            "10.0.0.210-10.0.0.250",
            "10.0.0.250-10.0.0.210",
            "20 vms.pool[0].range: ends before it begins",
        ),
        (
            "10.0.0.210-10.0.0.250",
            "10.0.0.210",
            "20 vms.pool[0].range: `10.0.0.210` is not a range of addresses",
        ),
        (
            "10.88.0.210-10.88.0.250",
            "10.88.0.210-10.88.0.254",
            "26 vms.pool[2].range: contains 10.88.0.254, the address of the router",
        ),
        (
            "10.88.0.210-10.88.0.250",
            "10.88.0.1-10.88.0.9",
            "26 vms.pool[2].range: contains 10.88.0.1, the address of the relay",
        ),
        (
            "bridge = \"br1\"",
            "bridge = \"mesh-nat0\"",
            "25 vms.pool[2].bridge: is the private network of each node, which assigns its addresses",
        ),
        (
            "bridge = \"br1\"",
            "bridge = \"a b\"",
            "25 vms.pool[2].bridge: `a b` is no interface name",
        ),
        ("bridge = \"br1\"\n", "", "24 vms.pool[2].bridge: is required"),
        ("range = \"10.0.0.20-10.0.0.29\"\n", "", "21 vms.pool[1].range: is required"),
        (
            "02:4d:45",
            "02:4d:45:00:01",
            "17 vms.mac_prefix: leaves 1 octet for all NICs of the site",
        ),
        ("02:4d:45", "03:4d", "17 vms.mac_prefix: is a multicast prefix"),
        ("02:4d:45", "2:4d", "17 vms.mac_prefix: `2:4d` is not a MAC address prefix"),
        ("mac_prefix", "macprefix", "17 vms.macprefix: unknown key"),
    ] {
        let found = described(edited(MORE, change, with));
        assert!(
            found.iter().any(|found| found.starts_with(fault)),
            "{change} -> {with}: {found:#?}"
        );
    }
}

#[test]
fn vm_pool_faults_are_all_reported_and_invalid_segment_adds_none() {
    let all = MORE
        .replace("02:4d:45", "x")
        .replace("10.0.0.210", "10.0.0.150")
        .replace("10.0.0.20-10.0.0.29", "10.9.0.20-10.9.0.29")
        .replace("br1", "mesh-nat0");
    let faults = read(&format!("{LEAST}{all}")).expect_err("faults").0;
    let lines: Vec<usize> = faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [17, 20, 23, 25], "{faults:#?}");
    let faults = edited(MORE, "10.88.0.100-10.88.0.200", "10.88.0.100").expect_err("no range").0;
    assert_eq!(faults.len(), 1, "{faults:#?}");
}

#[test]
fn derived_mac_is_stable_across_releases() {
    let uuid: SystemUuid = "11223344-5566-7788-99aa-bbccddeeff00".parse().expect("a UUID");
    let prefix = MacPrefix::default();
    let of = |index, attempt| derived_mac(&prefix, uuid, index, attempt);
    assert_eq!(
        of(0, 0).to_string(),
        "52:54:00:92:60:c9",
        "a machine keeps its NICs from one release to the next"
    );
    let four = [of(0, 0), of(1, 0), of(0, 1), of(1, 1)];
    assert_eq!(four.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{four:?}");
    let long: MacPrefix = "02:4d:45:53".parse().expect("a prefix");
    let MacAddr(octets) = derived_mac(&long, uuid, 0, 0);
    assert_eq!(octets[..4], [0x02, 0x4d, 0x45, 0x53]);
}
