//! A machine with four NICs of which the third boots, and a switch port that forwards late: the
//! doctor of boot paths names both.

use crate::racks::{BOOT, OrEnd, until_phase, up};
use meshd_lab::{Extra, Power};
use std::{fs, process::Command};

const NODE: u8 = 1;
/// No answer reaches the first two NICs. The port of the third one drops its first three DISCOVERs,
/// of 434 bytes each.
const RULES: &str = r#"table bridge ports {
  chain answers {
    type filter hook postrouting priority 0;
    oifname { "tap1a", "tap1b" } udp sport 67 drop
  }
  chain late {
    type filter hook prerouting priority 0;
    iifname "tap1" udp dport 67 quota 1500 bytes drop
  }
}
"#;

#[test]
fn third_of_four_nics_and_a_port_that_forwards_late_are_named() {
    let mut test = up(|mut options, _| {
        (options.nodes, options.powered) = (1, false);
        options.extras = vec![vec![Extra::FourNics]];
        options.set("enroll.policy", "auto")
    });
    let rack = &mut test.rack;
    let rules = rack.dir().join("ports.nft");
    fs::write(&rules, RULES).unwrap();
    let mut nft = rack.namespace().spawn(Command::new("nft").arg("-f").arg(&rules)).or_end();
    assert!(nft.wait().unwrap().success(), "nft");
    rack.power(NODE, Power::On).or_end();
    let node = until_phase(rack, NODE, "online", BOOT);

    let id = rack.id(NODE).to_string();
    let identity = rack.identity(NODE);
    let times = rack.query(&["boot-times", &id]).or_end();
    assert_eq!(times["mac"], identity.mac.to_string().as_str(), "{node}");
    let delay = |kind: &str| {
        let mut delays = times["delays"].as_array().unwrap().iter();
        let found = delays.find(|delay| delay["kind"] == kind);
        found.unwrap_or_else(|| panic!("{kind} in {times}")).clone()
    };
    let others = delay("other_nic");
    let detail = others["detail"].as_str().unwrap();
    for (mac, is_named) in identity.other_macs().iter().zip([true, true, false]) {
        assert_eq!(detail.contains(&mac.to_string()), is_named, "{mac}: {detail}");
    }
    assert!(others["cost_ms"].as_u64() > Some(10_000), "{others}");
    assert!(others["setting"].as_str().unwrap().contains("boot order"), "{others}");
    let port = delay("lost_discovers");
    assert_eq!(port["step"], "ipxe_dhcp", "{port}");
    assert!(port["setting"].as_str().unwrap().contains("edge port"), "{port}");
    let text = rack.run_cli(&["boot-times", &id]).or_end();
    assert!(text.contains("other_nic costs") && text.contains("lost_discovers costs"), "{text}");
}
