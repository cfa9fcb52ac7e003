//! A node that lost its overlay, or whose mesh-init refuses it, panics and tries again, and never
//! runs half.

use crate::{
    overlays::{REFUSAL, add_refused, copy},
    racks::{
        BOOT, OrEnd, STAGE, TestRack, count, events, kernel_starts, stages, until_phase,
        until_stage, until_written, up,
    },
};
use meshd_lab::{Power, Wait};
use serde_json::Value;
use std::path::Path;

const NODE: u8 = 1;

/// Racks of which one has its central node killed early enough, also on a busy machine.
const ATTEMPTS: usize = 5;

#[test]
fn node_without_overlay_panics_and_boots_once_it_is_served() {
    let (mut test, before) =
        (0..ATTEMPTS).find_map(|_| killed_before_overlay()).expect("one is killed early enough");
    let rack = &mut test.rack;

    // The kernel and the init script write at the same time: this is the last line of both.
    let serial = until_written(rack, NODE, "Rebooting in 10 seconds", STAGE);
    // A line of the kernel may cut the line of the init script in two.
    assert!(
        ["/sbin/mesh-init not found", "in new root"].iter().any(|part| serial.contains(part)),
        "what only the overlay brings is missing"
    );
    assert!(
        serial.contains("Kernel panic - not syncing: Attempted to kill init!"),
        "and without it nothing runs"
    );
    assert!(!serial.contains("mesh-init: ok"), "it never came as far as OpenRC");
    assert!(!serial.contains("Runlevel") && !serial.contains("login:"), "nothing ran half");

    assert_eq!(count(rack, NODE, "certificate_issued"), 0);
    let after = until_phase(rack, NODE, "online", BOOT);
    assert_ne!(after["boot"]["session"], before["boot"]["session"], "in a boot of its own");
    assert!(stages(&after).contains(&"overlay"), "{after}");
    assert_eq!(kernel_starts(rack, NODE), 2, "the very next one");
    assert_eq!(
        count(rack, NODE, "overlay_missing"),
        1,
        "the next script says that the boot before had no overlay (OV-12)"
    );
    assert_eq!(count(rack, NODE, "certificate_issued"), 1);
}

/// A rack whose node has fetched its packages from a central node that was killed before it fetched
/// the overlay, and the node's record; `None` if the kill was too late. With `delivery = "url"` the
/// kernel runs before the overlay is fetched, so here a node really can lose it. A capability does not
/// outlive the process that gave it out, DHCP does: the kernel gets its address and no overlay.
fn killed_before_overlay() -> Option<(TestRack, Value)> {
    let mut test = up(|mut options, _| {
        (options.nodes, options.powered) = (1, false);
        options.set("enroll.policy", "auto").set("boot.delivery", "url")
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    until_stage(rack, NODE, "packages");
    rack.kill_central().or_end();
    rack.start_central().or_end();
    let node = rack.node(NODE).or_end().expect("known from before the kill");
    (!stages(&node).contains(&"overlay")).then_some((test, node))
}

#[test]
fn mesh_init_refusal_reason_is_recorded() {
    let mut test = up(|mut options, dir| {
        let overlays = dir.join("overlays");
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays"), &overlays);
        add_refused(&overlays, "refused");
        options.nodes = 1;
        options
            .set("enroll.policy", "auto")
            .set("profiles.discovery.overlays", r#"["base", "agent", "refused"]"#)
            .set("site.overlays_dir", &overlays.display().to_string())
    });
    let rack = &mut test.rack;
    let failed = rack.wait(BOOT, "the report of mesh-init", |rack| {
        let failed = events(rack).into_iter().find(|event| event["kind"] == "boot_failed");
        Ok(Wait::some(failed, "no such event".to_owned()))
    });
    let failed = failed.or_end();
    let id = rack.id(NODE).to_string();
    assert_eq!(
        (&failed["detail"], &failed["node"]),
        (&REFUSAL.into(), &id.as_str().into()),
        "{failed}"
    );
    let log = rack
        .run_cli(&[
            "node",
            "logs",
            &id,
            "--session",
            failed["session"].as_str().unwrap_or_default(),
        ])
        .or_end();
    assert_eq!(log, format!("mesh-init: FAILED: {REFUSAL}\n"));
}
