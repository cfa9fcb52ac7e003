//! Nodes with BIOS and with UEFI boot `debian-12`, and get another profile by kexec.

use crate::{
    IMAGE,
    racks::{BOOT, OrEnd, reboot_warm, stages, until_phase, up_alone},
};
use meshd_lab::{Firmware, Mix, Rack, Shape};

const NODES: [u8; 2] = [1, 2];

#[test]
fn debian_nodes_get_another_profile_by_kexec() {
    let test = up_alone(|mut options, _| {
        options.firmware = Mix::of([Firmware::Bios, Firmware::Uefi]);
        options.shape = Shape { memory_mib: 1536, ..options.shape };
        options
            .set("enroll.policy", "auto")
            .set("profiles.debian.image", IMAGE)
            .set("profiles.debian.overlays", r#"["base", "agent", "ssh", "motd"]"#)
            .set("profiles.debian.writable", "256M")
            .set("profiles.debian-next.extends", "debian")
            .set("profiles.debian-next.warm", "allow")
            .set("defaults.profile", "debian")
    });
    for place in NODES {
        until_phase(&test.rack, place, "online", BOOT);
        runs_as(&test.rack, place, "debian");
    }
    for place in NODES {
        let id = test.rack.id(place).to_string();
        test.rack.run_cli(&["node", "assign-profile", &id, "debian-next"]).or_end();
        let node = reboot_warm(&test.rack, place);
        assert_eq!(node["conditions"], serde_json::json!([]), "{node}");
        runs_as(&test.rack, place, "debian-next");
    }
}

/// The node runs the root of the image, with the overlay of this profile.
fn runs_as(rack: &Rack, place: u8, profile: &str) {
    let id = rack.id(place).to_string();
    let node = rack.query(&["node", "show", &id]).or_end();
    assert_eq!(node["profile"], profile, "{node}");
    assert!(stages(&node).contains(&"root"), "{node}");
    let doctor = rack.query(&["node", "doctor", &id]).or_end();
    assert_eq!(doctor["failures"], 0, "{doctor}");
    let motd = rack.run_cli(&["node", "exec", &id, "--", "/bin/cat", "/etc/motd"]).or_end();
    assert!(motd.contains(&format!(", profile {profile}\n")), "another overlay: {motd}");
}
