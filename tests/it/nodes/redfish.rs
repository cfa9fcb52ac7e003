//! Orders to BMCs by Redfish: `sushy-emulator` is the BMC, behind a proxy that lies.

use super::power::{Bench, PASSWORD, order, seen_machine, state};
use crate::{
    kit::redfish::{self, Emulator},
    world::{World, dhcp::As, eventually, stderr},
};
use serde_json::{Value, json};

fn start_emulator(world: &World, bench: &Bench) -> Emulator {
    start_emulator_at(world, bench, "127.0.0.1")
}

/// Starts a BMC with this address.
fn start_emulator_at(world: &World, bench: &Bench, address: &str) -> Emulator {
    Emulator::start(&world.central, &bench.0, address, PASSWORD)
}

fn until_state(world: &World, bench: &Bench, wanted: &str) -> Value {
    eventually("the BMC reports the state", || {
        let state = state(world, "gpu001");
        if state["state"] == wanted {
            Ok(state)
        } else {
            Err(format!("{state} {}", bench.read("log")))
        }
    })
}

/// Number of cold cycles that the BMC was asked for.
fn cycles(bench: &Bench) -> usize {
    let requests = bench.read("requests");
    let is_cycle = |line: &&str| line.contains("PowerCycle") || line.contains("ForceRestart");
    requests.lines().filter(is_cycle).count()
}

/// Requests to power the machine on.
fn power_ons(bench: &Bench) -> usize {
    bench.read("requests").matches("\"On\"").count()
}

#[test]
fn machine_is_switched_by_redfish_through_a_proxy_that_lies() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let certificate = redfish::make_certificate(&bench.0);
    let rule = format!(
        "nodes = [\"gpu001\"]\naddress = \"127.0.0.1\"\ncertificates = [\"{certificate}\"]\n"
    );
    let sections = bench.sections("redfish", &rule);
    world.edit_site("[defaults]", &sections.replace("[power]\n", "[power]\ntimeout = \"12s\"\n"));
    world.start();
    let _emulator = start_emulator(&world, &bench);
    let machine = seen_machine(&world, 1, "gpu001");
    until_state(&world, &bench, "off");

    // The BMC starts and answers 404 first; the emulator switches after some seconds.
    bench.write("lie", "404 2");
    let mut booted = false;
    let (code, text) = order(&world, &["node", "power", "on", "gpu001"], || {
        if bench.read("requests").contains("\"On\"") {
            machine.dhcp(As::Ipxe);
            booted = true;
        }
    });
    assert!(booted && code == Some(0) && text.contains("1 done"), "{text} {}", bench.read("log"));
    until_state(&world, &bench, "on");

    // Each answer takes most of `timeout`: an order of three answers changes the machine once.
    bench.write("lie", "slow 5");
    assert_eq!(state(&world, "gpu001")["state"], "on", "each answer within [power].timeout");
    let (code, text) = order(&world, &["node", "power", "cycle", "--yes", "gpu001"], || {
        if cycles(&bench) > 0 {
            machine.dhcp(As::Ipxe);
        }
    });
    assert!(code == Some(0) && text.contains("1 done"), "{text} {}", bench.read("log"));
    assert_eq!(cycles(&bench), 1, "{}", bench.read("requests"));

    // It refuses each shutdown: the forced power-off follows.
    bench.write("lie", "refuse GracefulShutdown");
    until_state(&world, &bench, "on");
    let (code, text) = order(&world, &["node", "power", "off", "--yes", "gpu001"], || {});
    assert!(code == Some(0) && text.contains("1 done"), "{text}");
    assert!(bench.read("requests").contains("ForceOff"), "{}", bench.read("requests"));

    // It accepts a request and does nothing: the request is repeated.
    bench.write("lie", "ignore");
    until_state(&world, &bench, "off");
    let before = power_ons(&bench);
    let (code, text) =
        order(&world, &["node", "power", "on", "gpu001"], || match power_ons(&bench) - before {
            0 => {}
            1 => bench.write("lie", ""),
            _ => drop(machine.dhcp(As::Ipxe)),
        });
    assert!(code == Some(0) && text.contains("1 done"), "{text} {}", bench.read("log"));
    assert_eq!(power_ons(&bench) - before, 2, "{}", bench.read("requests"));

    let (code, text) = order(&world, &["node", "boot-device", "pxe", "gpu001"], || {});
    assert_eq!(code, Some(0), "{text}");
    bench.write("lie", "forget");
    let (code, text) = order(&world, &["node", "boot-device", "disk", "gpu001"], || {});
    assert!(code == Some(1) && text.contains("accepted boot device Hdd"), "{text}");
    bench.write("lie", "");
    let (code, text) = order(&world, &["node", "identify", "on", "gpu001"], || {});
    assert_eq!(code, Some(0), "{text}");

    // A wrong password is tried once; a third try may lock the account.
    bench.write_password("wrong", 0o600);
    for _ in 0..3 {
        assert!(
            state(&world, "gpu001")["error"].as_str().unwrap().contains("refused this user")
                || bench.read("refusals").lines().count() == 1
        );
    }
    assert_eq!(bench.read("refusals").lines().count(), 1);
    bench.write_password(PASSWORD, 0o600);
    until_state(&world, &bench, "on");
    let secret = PASSWORD.as_bytes();
    let stored = world.state_bytes();
    assert!(!stored.windows(secret.len()).any(|part| part == secret), "the password is stored");
}

#[test]
fn bmc_with_another_certificate_gets_no_password() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    redfish::make_certificate(&bench.0);
    let other = "00".repeat(32);
    let rule =
        format!("nodes = [\"gpu001\"]\naddress = \"127.0.0.1\"\ncertificates = [\"{other}\"]\n");
    world.edit_site("[defaults]", &bench.sections("redfish", &rule));
    world.start();
    let _emulator = start_emulator(&world, &bench);
    let _machine = seen_machine(&world, 1, "gpu001");
    eventually("the BMC is refused", || {
        let error = state(&world, "gpu001")["error"].as_str().unwrap_or_default().to_owned();
        if error.contains("another certificate") { Ok(()) } else { Err(error) }
    });
    // By its own authority, it is accepted.
    let file = bench.0.join("ca.pem");
    let ca = format!("ca_file = \"{}\"", file.display());
    world.edit_site(&format!("certificates = [\"{other}\"]"), &ca);
    let reloaded = world.meshd(&["reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    until_state(&world, &bench, "off");
}

#[test]
fn bmc_with_a_new_certificate_gets_no_request_until_the_list_has_it() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let old = redfish::make_certificate(&bench.0);
    let rule =
        format!("nodes = [\"gpu001\"]\naddress = \"127.0.0.1\"\ncertificates = [\"{old}\"]\n");
    world.edit_site("[defaults]", &bench.sections("redfish", &rule));
    world.start();
    let _emulator = start_emulator(&world, &bench);
    let machine = seen_machine(&world, 1, "gpu001");
    until_state(&world, &bench, "off");
    let new = redfish::make_certificate(&bench.0);
    let on = ["node", "power", "on", "gpu001"];
    let (code, text) = order(&world, &on, || {});
    let named = new.replace(':', "").to_lowercase();
    assert!(code == Some(1) && text.to_lowercase().replace(':', "").contains(&named), "{text}");
    assert_eq!((bench.read("requests"), bench.read("refusals")), (String::new(), String::new()));
    world.edit_site(&old, &new);
    let reloaded = world.meshd(&["reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    let (code, text) = order(&world, &on, || {
        if power_ons(&bench) > 0 {
            machine.dhcp(As::Ipxe);
        }
    });
    assert!(code == Some(0) && text.contains("1 done"), "{text} {}", bench.read("log"));
}

#[test]
fn account_that_three_wrong_logins_lock_is_not_locked() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let certificate = redfish::make_certificate(&bench.0);
    let rule = format!(
        "nodes = [\"gpu001\"]\naddress = \"127.0.0.1\"\ncertificates = [\"{certificate}\"]\n"
    );
    world.edit_site("[defaults]", &bench.sections("redfish", &rule));
    world.start();
    let _emulator = start_emulator(&world, &bench);
    let _machine = seen_machine(&world, 1, "gpu001");
    until_state(&world, &bench, "off");
    bench.write("lie", "lock");
    bench.write_password("wrong", 0o600);
    for words in ["power status", "power on", "sensors", "sel", "firmware", "boot-device pxe"] {
        let args: Vec<&str> = words.split(' ').collect();
        let refused = world.meshd(&[&["node"], &args[..], &["gpu001"]].concat());
        let text = stderr(&refused);
        let shown = String::from_utf8_lossy(&refused.stdout);
        let is_refused = text.contains("refuse") || shown.contains("refuse");
        assert!(is_refused, "{words}: {shown}{text}");
    }
    assert_eq!(bench.read("refusals").lines().count(), 1, "{}", bench.read("refusals"));
    bench.write_password(PASSWORD, 0o600);
    until_state(&world, &bench, "off");
}

#[test]
fn bmc_with_an_ipv6_address_only_is_switched_by_redfish() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let certificate = redfish::make_certificate(&bench.0);
    let rule =
        format!("nodes = [\"gpu001\"]\naddress = \"::1\"\ncertificates = [\"{certificate}\"]\n");
    world.edit_site("[defaults]", &bench.sections("redfish", &rule));
    world.start();
    let _emulator = start_emulator_at(&world, &bench, "::1");
    let machine = seen_machine(&world, 1, "gpu001");
    until_state(&world, &bench, "off");
    let (code, text) = order(&world, &["node", "power", "on", "gpu001"], || {
        if power_ons(&bench) > 0 {
            machine.dhcp(As::Ipxe);
        }
    });
    assert!(code == Some(0) && text.contains("1 done"), "{text} {}", bench.read("log"));
}

#[test]
fn sensors_events_and_versions_are_read_by_redfish() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let certificate = redfish::make_certificate(&bench.0);
    let rule = format!(
        "nodes = [\"gpu001\"]\naddress = \"127.0.0.1\"\ncertificates = [\"{certificate}\"]\n"
    );
    world.edit_site("[defaults]", &bench.sections("redfish", &rule));
    world.start();
    let _emulator = start_emulator(&world, &bench);
    let _machine = seen_machine(&world, 1, "gpu001");
    until_state(&world, &bench, "off");
    let sensors = world.json(&["node", "sensors", "gpu001", "-o", "json"]);
    let cpu = sensors.as_array().unwrap().iter().find(|sensor| sensor["name"] == "CPU Temp");
    let cpu = cpu.unwrap_or_else(|| panic!("{sensors}"));
    assert_eq!((&cpu["reading"], &cpu["state"]), (&"41 degrees C".into(), &"OK".into()));
    let versions = world.json(&["node", "firmware", "gpu001", "-o", "json"]);
    assert_eq!(versions, json!([{ "name": "BMC", "version": "1.00" }]));
    let refused = world.meshd(&["node", "sel", "gpu001"]);
    let text = stderr(&refused);
    assert!(refused.status.code() == Some(1) && text.contains("no event log"), "{text}");

    // The emulator has no event log.
    let system = "/redfish/v1/Systems/27946b59-9e44-4fa7-8e91-f3527a1ef094";
    let link = |path: &str| json!({ "@odata.id": path });
    let entry = json!({
        "@odata.id": "/log/1", "Id": "1", "Created": "2026-01-31T12:00:00Z",
        "Message": "Fan 1 failed\u{1b}", "Severity": "Critical"
    });
    let fake = json!({
        system: { "LogServices": link("/services") },
        "/services": { "Members": [link("/other"), link("/sel")] },
        "/other": { "Id": "Audit" },
        "/sel": {
            "Id": "SEL", "Entries": link("/entries"),
            "Actions": { "#LogService.ClearLog": { "target": "/clear" } }
        },
        "/entries": { "Members": [entry] },
        "/clear": { "/entries": { "Members": [] } }
    });
    bench.write("fake", &fake.to_string());
    let events = world.json(&["node", "sel", "gpu001", "-o", "json"]);
    assert_eq!(
        (&events[0]["event"], &events[0]["state"]),
        (&"Fan 1 failed".into(), &"Critical".into())
    );
    let cleared = world.meshd(&["node", "sel", "gpu001", "--clear", "--yes"]);
    assert!(cleared.status.success(), "{}", stderr(&cleared));
    assert_eq!(world.json(&["node", "sel", "gpu001", "-o", "json"]), json!([]));
}
