//! No overlay: a node that lost its overlay panics and tries again, and never runs half.

use crate::racks::{BOOT, OrEnd, STAGE, count, kernel_starts, stages, until_phase, until_stage, until_written, up};
use meshd_lab::Power;

const NODE: u8 = 1;

/// With `delivery = "url"` the kernel runs before the overlay is fetched, so here a node really can lose it.
#[test]
fn a_node_that_lost_its_overlay_panics_and_comes_up_once_it_is_served_again() {
    let mut test = up(|mut options, _| {
        (options.nodes, options.powered) = (1, false);
        options.set("enroll.policy", "auto").set("boot.delivery", "url")
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    until_stage(rack, NODE, "packages");
    // A capability does not outlive the process that gave it out, DHCP does: the kernel gets its address and no overlay.
    rack.kill_central().or_end();
    rack.start_central().or_end();
    let before = rack.node(NODE).or_end().expect("known from before the kill");
    assert!(!stages(&before).contains(&"overlay"), "it was killed before the overlay was fetched: {before}");

    // The kernel and the init script write at the same time: this is the last line of both.
    let serial = until_written(rack, NODE, "Rebooting in 10 seconds", STAGE);
    assert!(serial.contains("/sbin/mesh-init not found in new root"), "what only the overlay brings is missing");
    assert!(serial.contains("Kernel panic - not syncing: Attempted to kill init!"), "and without it nothing runs");
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
