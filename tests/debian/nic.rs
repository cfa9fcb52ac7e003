//! A machine whose NIC has no driver in the built image, and iPXE that says so.

use crate::{
    IMAGE, NODE,
    racks::{OrEnd, SOON, count, kernel_starts, until_written, up},
    wait_for_driver_refusal,
};
use meshd_lab::{Nic, Shape};

#[test]
fn machine_whose_nic_has_no_driver_in_the_image_loads_no_kernel() {
    let test = up(|mut options, _| {
        options.nodes = 1;
        options.shape = Shape { nic: Nic::Rtl8139, ..options.shape };
        options
            .set("enroll.policy", "auto")
            .set("profiles.debian.image", IMAGE)
            .set("profiles.debian.overlays", r#"["base", "agent"]"#)
            .set("defaults.profile", "debian")
    });
    let rack = &test.rack;
    let reason = "image debian-12 has no driver for NIC 10ec:8139 of this machine";
    let refusal = wait_for_driver_refusal(rack);
    assert!(refusal["detail"].as_str().is_some_and(|it| it.starts_with(reason)), "{refusal}");
    let timeline = rack.run_cli(&["node", "timeline", &rack.id(NODE).to_string()]).or_end();
    assert!(timeline.contains("(nic_driver_missing)") && timeline.contains(reason), "{timeline}");
    // The operator in front of the machine reads the reason, too.
    until_written(rack, NODE, "not booted (nic_driver_missing)", SOON);
    assert_eq!(kernel_starts(rack, NODE), 0, "it loaded a kernel");
    assert_eq!(count(rack, NODE, "certificate_issued"), 0);
}
