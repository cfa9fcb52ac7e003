//! Networks that are not meshd's own: another DHCP server leases the addresses; a router with a
//! relay stands in between.

use super::site_services::{RELAY, SiteDhcp, relay};
use crate::racks::{BOOT, OrEnd, kernel_starts, stages, until_phase, up};
use meshd_lab::{Firmware, Mix, Power, Rack};
use serde_json::Value;
use std::net::Ipv4Addr;

const FIRST: u8 = 1;
const SECOND: u8 = 2;

#[test]
fn bios_and_uefi_boot_online_beside_another_dhcp_server() {
    let mut test = up(|mut options, _| {
        (options.firmware, options.powered) = (Mix::of([Firmware::Bios, Firmware::Uefi]), false);
        options.set("enroll.policy", "auto").set("dhcp.mode", "proxy")
    });
    let rack = &mut test.rack;
    let dnsmasq = SiteDhcp::start(rack);
    rack.power(FIRST, Power::On).or_end();
    rack.power(SECOND, Power::On).or_end();
    for place in [FIRST, SECOND] {
        let node = until_phase(rack, place, "online", BOOT);
        came_up_whole(rack, place, &node);
        let leased = dnsmasq.address(&rack.identity(place).mac.to_string());
        assert!(leased.is_some(), "dnsmasq leased node{place} its address");
        assert_eq!(address(&node), leased, "meshd knows which");
    }
    let other =
        |event: &Value| event["kind"] == "pool_exhausted" || event["kind"] == "boot_impersonated";
    assert!(!crate::racks::events(rack).iter().any(other), "nothing alarmed anybody");
}

#[test]
fn relayed_bios_and_uefi_http_boot_come_online() {
    let mut test = up(|mut options, _| {
        (options.firmware, options.powered) =
            (Mix::of([Firmware::Bios, Firmware::UefiHttp]), false);
        let far = format!(
            r#"[{{ relay = "{RELAY}", range = "10.78.0.20-10.78.0.40", router = "{RELAY}" }}]"#
        );
        options.set("enroll.policy", "auto").set("segment", &far)
    });
    let rack = &mut test.rack;
    let _router = relay(rack, &[FIRST]);
    rack.power(FIRST, Power::On).or_end();
    rack.power(SECOND, Power::On).or_end();
    let far = until_phase(rack, FIRST, "online", BOOT);
    came_up_whole(rack, FIRST, &far);
    assert!(
        address(&far).is_some_and(|address| address.octets()[..3] == RELAY.octets()[..3]),
        "{far}"
    );

    let near = until_phase(rack, SECOND, "online", BOOT);
    came_up_whole(rack, SECOND, &near);
    assert!(address(&near).is_some_and(|address| address.octets()[..3] == [10, 77, 0]), "{near}");
    let serial = rack.serial(SECOND);
    assert!(
        serial.contains(">>Start HTTP Boot over IPv4") && !serial.contains(">>Start PXE"),
        "its loader came by HTTP"
    );
}

fn address(node: &Value) -> Option<Ipv4Addr> {
    node["address"].as_str()?.parse().ok()
}

/// Every stage of the chain is on record, each once.
fn came_up_whole(rack: &Rack, place: u8, node: &Value) {
    // A BIOS node's card is iPXE from its first packet.
    let firmware: &[&str] = if rack.firmware(place).is_uefi() { &["dhcp", "loader"] } else { &[] };
    let chain =
        ["ipxe_dhcp", "script", "kernel", "initramfs", "packages", "overlay", "os_dhcp", "modloop"];
    let reached = stages(node);
    for stage in firmware.iter().chain(&chain).chain(&["enrolled", "link", "online"]) {
        assert!(reached.contains(stage), "node{place} never reached {stage}: {reached:?}");
    }
    assert_eq!(kernel_starts(rack, place), 1, "node{place} came up at its first try");
}
