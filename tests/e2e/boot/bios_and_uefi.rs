//! BIOS and UEFI at once: from power-on to online, with a stranger at every stage; then UEFI into
//! another profile, by kexec.

use super::{
    attacker::{self, asks_in_vain, guesses_in_vain, hides_its_secrets},
    images,
};
use crate::{
    overlays::{PEEK_END, peeked, with_peek},
    racks::{
        BOOT, OrEnd, SOON, STAGE, kernel_starts, reboot_warm, stages, until_phase, until_stage, up,
    },
};
use meshd_lab::{Firmware, Mix, Power, Rack, Wait};
use serde_json::Value;

const BIOS: u8 = 1;
const UEFI: u8 = 2;

#[test]
fn bios_and_uefi_boot_online_without_secret_leak_and_change_profile() {
    let mut test = up(|mut options, dir| {
        (options.firmware, options.powered) = (Mix::of([Firmware::Bios, Firmware::Uefi]), false);
        let overlays = with_peek(dir);
        options.blobs = options.blobs.map(|blobs| images::odd(&blobs, dir));
        options
            .set("enroll.policy", "auto")
            .set("site.overlays_dir", &overlays.display().to_string())
            .set("profiles.discovery.overlays", r#"["base", "agent", "peek"]"#)
            .set("profiles.compute.warm", "allow")
    });
    let rack = &mut test.rack;
    let stranger = rack.neighbour("stranger", attacker::ADDRESS).or_end();

    asks_in_vain(rack, &stranger, BIOS, "before the boot");
    rack.power(BIOS, Power::On).or_end();
    rack.power(UEFI, Power::On).or_end();
    until_stage(rack, BIOS, "script");
    asks_in_vain(rack, &stranger, BIOS, "during the boot");
    guesses_in_vain(rack, &stranger);
    for place in [BIOS, UEFI] {
        let node = until_phase(rack, place, "online", BOOT);
        came_up_whole(rack, place, &node);
        hides_its_secrets(rack, place);
    }
    asks_in_vain(rack, &stranger, BIOS, "after the boot");
    asks_in_vain(rack, &stranger, UEFI, "after the boot");

    becomes_compute(rack, UEFI, BIOS);
}

/// Every stage of the chain is on record, and the node has told what it is.
fn came_up_whole(rack: &Rack, place: u8, node: &Value) {
    let reached = stages(node);
    let mut chain = vec![
        "script",
        "kernel",
        "initramfs",
        "packages",
        "overlay",
        "os_dhcp",
        "modloop",
        "enrolled",
    ];
    chain.extend(["link", "online"]);
    // A BIOS node's card is iPXE from its first packet; UEFI's own client fetches it.
    let firmware =
        if place == BIOS { vec!["ipxe_dhcp"] } else { vec!["dhcp", "loader", "ipxe_dhcp"] };
    for stage in firmware.iter().chain(&chain) {
        assert!(reached.contains(stage), "node{place} never reached {stage}: {reached:?}");
    }
    assert_eq!(kernel_starts(rack, place), 1, "node{place} came up at its first try");
    let serial = rack.serial(place);
    assert!(!serial.contains("unpacking failed"), "node{place} lost an initrd");

    let id = rack.id(place).to_string();
    let shown = rack.query(&["node", "show", &id]).or_end();
    let facts = &shown["facts"];
    assert_eq!(facts["system"]["uuid"], rack.identity(place).uuid.to_string().as_str());
    assert_eq!(facts["system"]["serial"], rack.identity(place).serial.as_str());
    assert_eq!(facts["nics"][0]["mac"], rack.identity(place).mac.to_string().as_str());
    assert_eq!(facts["versions"]["generation"], shown["generation"]);
    assert_eq!(facts["versions"]["session"], node["boot"]["session"]);
    assert!(facts["pci"].as_array().is_some_and(|functions| !functions.is_empty()), "{facts}");
    assert!(facts["memory"]["total_kib"].as_u64().is_some_and(|kib| kib > 700_000), "{facts}");
    assert_eq!(facts["memory"]["modules"][0]["manufacturer"], "QEMU", "{}", facts["memory"]);
    assert!(facts["nics"][0]["function"].is_string(), "{}", facts["nics"]);
    let checks = shown["checks"].as_array().cloned().unwrap_or_default();
    // Its profile runs no VMs: what is for those is left out.
    let passes = |check: &Value| check["status"] == "PASS" || check["status"] == "SKIP";
    assert!(
        checks.iter().all(passes) && checks.iter().any(|check| check["status"] == "PASS"),
        "{checks:?}"
    );

    let doctor = rack.query(&["node", "doctor", &id]).or_end();
    assert_eq!(
        (&doctor["failures"], &doctor["session"]),
        (&Value::from(0), &node["boot"]["session"]),
        "{doctor}"
    );
    assert!(
        doctor["checks"].as_array().is_some_and(|checks| checks.iter().all(passes)),
        "{doctor}"
    );

    keeps_its_log(rack, &id);
    let timeline = rack.query(&["node", "timeline", &id]).or_end();
    assert!(timeline["total_ms"].as_u64().is_some_and(|ms| ms > 1_000), "{timeline}");
    assert_eq!(timeline["stages"].as_array().map(Vec::len), Some(reached.len()));
}

/// The log begins with the kernel's first line and has what services wrote (OB-5).
fn keeps_its_log(rack: &Rack, id: &str) {
    let lines = ["Linux version ", "mesh-init: ok", "mesh-agent started"];
    rack.wait(SOON, "the log of the boot", |rack| {
        let log = rack.run_cli(&["node", "logs", id])?;
        let missing: Vec<&str> = lines.into_iter().filter(|line| !log.contains(line)).collect();
        Ok(Wait::some(
            missing.is_empty().then_some(()),
            format!("missing: {missing:?} in {} bytes", log.len()),
        ))
    })
    .or_end();
    let kernel = rack.run_cli(&["node", "logs", id, "--source", "kernel"]).or_end();
    assert!(
        kernel.starts_with("[    0.000000] Linux version "),
        "{}",
        kernel.lines().next().unwrap_or_default()
    );
}

/// One node gets another profile and a reboot by kexec; the other one does not notice. The tests of
/// VFIO and of power have this without kexec, and with BIOS.
fn becomes_compute(rack: &Rack, place: u8, other: u8) {
    let before = rack.node(place).or_end().expect("known");
    let bystander = rack.node(other).or_end().expect("known");
    let id = rack.id(place).to_string();
    let motd = peeked(&rack.serial(place), "PEEK-MOTD");

    let refused = rack
        .run_cli(&["node", "assign-profile", &id, "no-such-profile"])
        .expect_err("there is none")
        .to_string();
    assert!(
        refused.contains("compute") && refused.contains("discovery"),
        "it says which do: {refused}"
    );
    rack.run_cli(&["node", "assign-profile", &id, "compute"]).or_end();
    let node = reboot_warm(rack, place);
    assert_eq!(
        (&node["profile"], &node["assigned"]),
        (&Value::from("compute"), &Value::from(true))
    );
    assert_ne!(node["generation"], before["generation"]);

    let serial = rack.wait(STAGE, "the second look from inside", |rack| {
        let serial = rack.serial(place);
        let twice = serial.matches(PEEK_END).count() >= 2;
        Ok(meshd_lab::Wait::some(twice.then_some(serial), "one look"))
    });
    let now = peeked(&serial.or_end(), "PEEK-MOTD");
    assert!(now != motd && now.contains("compute"), "`{motd}` became `{now}`");

    let after = rack.node(other).or_end().expect("known");
    for key in ["phase", "profile", "generation"] {
        assert_eq!(after[key], bystander[key], "{key} of the other node");
    }
    assert_eq!(
        after["boot"]["session"], bystander["boot"]["session"],
        "the other node did not reboot"
    );
}
