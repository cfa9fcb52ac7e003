//! BMCs that get their addresses from meshd by DHCP, with a real client and a real BMC on the wire.

use super::{Bench, IpmiSim, state, world_with};
use crate::world::{World, eventually, program::Program, stderr, write_program};
use meshd_lab::Namespace;
use meshd_types::MacAddr;
use std::fs;

const BMC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xb1]);

/// Sets the address of the lease, as each DHCP client does.
const SCRIPT: &str = r#"#!/bin/sh
case $1 in
bound | renew)
    ip address replace "$ip/24" dev "$interface"
    touch "$0-$ip"
    ;;
deconfig) ip address flush dev "$interface" ;;
esac
"#;

/// The network of a BMC: BusyBox's client, with the class of a product.
fn lease(world: &World, inside: &Namespace, class: &str) -> (Program, String) {
    let script = world.path("lease");
    write_program(&script, SCRIPT);
    let script = script.to_str().unwrap();
    let args = ["-f", "-i", "eth0", "-s", script, "-t", "60", "-T", "1", "-V", class];
    let args = [&args[..], &["-x", "hostname:idrac-7X"]].concat();
    let client = Program::start(world, inside, "udhcpc", &args);
    let address = client.says("lease of ", 1);
    eventually("the address is set", || {
        let is_set = world.path(&format!("lease-{address}")).exists();
        if is_set { Ok(()) } else { Err(client.log_text()) }
    });
    (client, address)
}

/// The findings of the doctor, if one of them is about BMCs without a machine.
fn finding(world: &World) -> Option<String> {
    let text = String::from_utf8_lossy(&world.meshd(&["doctor"]).stdout).into_owned();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.contains("a lease and no machine").then_some(text)
}

fn add(world: &World, mac: &str) -> (Option<i32>, String) {
    let args = ["node", "add", "--mac", "52:54:00:00:00:01", "--name", "gpu001", "--bmc-mac", mac];
    let added = world.meshd(&args);
    (added.status.code(), stderr(&added))
}

fn until_off(world: &World) {
    eventually("the BMC answers at its lease", || {
        let state = state(world, "gpu001");
        if state["state"] == "off" { Ok(()) } else { Err(state.to_string()) }
    });
}

#[test]
fn leased_bmc_is_paired_by_an_operator_and_followed_to_its_next_address() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let sections = bench.sections("ipmi", "").replace("address = \"127.0.0.1\"\n", "");
    world.edit_site("[defaults]", &sections.replace("cipher_suite = 3\n", ""));
    world.start();
    assert_eq!(finding(&world), None);
    let bmc = world.host(BMC);
    let (client, address) = lease(&world, &bmc, "iDRAC");
    let found = finding(&world).unwrap_or_else(|| panic!("{}", world.log_text()));
    for part in [&BMC.to_string(), "Dell iDRAC idrac-7X", address.as_str()] {
        assert!(found.contains(part), "{part}: {found}");
    }
    let leases = world.json(&["dhcp", "leases", "-o", "json"]);
    assert_eq!(leases[0]["bmc"], "Dell iDRAC idrac-7X", "{leases}");
    assert_eq!(world.json(&["node", "list", "-o", "json"]), serde_json::json!([]), "no node");
    let sim = IpmiSim::start_at(&bmc, &address, &bench, "");

    // A stranger with the class of a BMC is listed, and no order reaches it.
    let stranger = world.host(MacAddr([0x52, 0x54, 0, 0, 0, 0xb2]));
    let (_stranger, stranger) = lease(&world, &stranger, "CPQRIB3");
    assert!(finding(&world).is_some_and(|found| found.contains("2 BMCs")), "{:?}", finding(&world));
    let list = "mac,name\n52:54:00:00:00:01,gpu001\n";
    fs::write(world.path("machines.csv"), list).unwrap();
    let file = world.path("machines.csv");
    let imported = world.meshd(&["node", "import", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{}", stderr(&imported));
    let error = state(&world, "gpu001")["error"].to_string();
    assert!(error.contains("has no address"), "{error}");
    assert!(bench.read("requests").is_empty(), "nothing was sent");

    // The pairing is that of an operator. The lease is no proof, so the password needs a suite.
    for (mac, fault) in [
        ("52:54:00:00:00:01", "bmc-mac: `52:54:00:00:00:01` is on line"),
        ("ff:ff:ff:ff:ff:ff", "is the address of no single NIC"),
    ] {
        let (code, text) = add(&world, mac);
        assert!(code == Some(1) && text.contains(fault), "{text}");
    }
    let (code, text) = add(&world, &BMC.to_string());
    assert_eq!(code, Some(0), "{text}");
    let error = state(&world, "gpu001")["error"].to_string();
    assert!(error.contains("names no cipher suite"), "{error}");
    assert!(bench.read("requests").is_empty(), "nothing was sent");
    world.edit_site("driver = \"ipmi\"", "driver = \"ipmi\"\ncipher_suite = 1");
    assert!(world.meshd(&["reload"]).status.success());
    let error = state(&world, "gpu001")["error"].to_string();
    assert!(error.contains("cipher suite 1 of its rule protects no message"), "{error}");
    assert!(bench.read("requests").is_empty(), "nothing was sent");
    world.edit_site("cipher_suite = 1", "cipher_suite = 3");
    assert!(world.meshd(&["reload"]).status.success());
    until_off(&world);
    assert_eq!(state(&world, "gpu001")["address"], address.as_str());
    assert!(finding(&world).is_some_and(|found| found.contains("1 BMC has")));
    let other =
        world.meshd(&["node", "add", "--mac", "52:54:00:00:00:02", "--bmc-mac", &BMC.to_string()]);
    assert!(stderr(&other).contains("is a MAC address of gpu001"), "{}", stderr(&other));
    let other = world.meshd(&["node", "add", "--mac", &BMC.to_string()]);
    assert!(stderr(&other).contains("is the BMC of gpu001"), "{}", stderr(&other));
    // A BMC that has its machine by an address is paired, too.
    let mac = "52:54:00:00:00:02";
    let other = world.meshd(&["node", "add", "--mac", mac, "--bmc-address", &stranger]);
    assert!(other.status.success(), "{}", stderr(&other));
    assert_eq!(finding(&world), None);

    // After a restart of meshd, the BMC gets another address.
    drop((sim, client));
    world.kill();
    let reservation = format!("[[reservation]]\nmac = \"{BMC}\"\naddress = \"10.77.0.20\"\n");
    let text = fs::read_to_string(&world.site).unwrap();
    fs::write(&world.site, format!("{text}\n{reservation}")).unwrap();
    world.start();
    let (_client, address) = lease(&world, &bmc, "iDRAC");
    assert_eq!(address, "10.77.0.20");
    let _sim = IpmiSim::start_at(&bmc, &address, &bench, "");
    until_off(&world);
    let leases = world.json(&["dhcp", "leases", "-o", "json"]);
    let all = leases.as_array().unwrap();
    let own = all.iter().find(|lease| lease["address"] == "10.77.0.20").unwrap();
    assert_eq!(own["bmc"], "BMC of gpu001");
}

#[test]
fn program_gets_no_password_for_a_bmc_without_a_lease() {
    let (world, bench) = world_with("command", "approve");
    let (code, text) = add(&world, &BMC.to_string());
    assert_eq!(code, Some(0), "{text}");
    let error = state(&world, "gpu001")["error"].to_string();
    assert!(error.contains("has no current lease of meshd"), "{error}");
    assert!(bench.read("requests").is_empty(), "the program ran without an address");
}
