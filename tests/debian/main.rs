//! Debian 12 by mmdebstrap: a machine whose NIC has no driver in the image, or with too little
//! memory, is refused, and the timeline shows why. With a clock of 1970, it comes online, keeps its
//! lease, and runs a container. A root from an OCI image of umoci comes online, too, and gives a
//! GPU to a VM. Nodes with BIOS, with UEFI and with a tethered root reboot by kexec. `make
//! test-debian` runs all of it; the images are built if they are missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[path = "../e2e/racks.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod racks;
#[path = "../e2e/work/vms/guest.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod guest;
#[path = "../e2e/overlays.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod overlays;
#[path = "../e2e/boot/attacker.rs"]
mod attacker;
mod cluster;
#[path = "../e2e/work/containers.rs"]
mod containers;
mod damaged;
#[path = "../kit/mod.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod kit;
mod nic;
mod no_overlay;
mod oci;
mod resumed;
mod running;
mod selinux;
mod tethered;
mod units;
mod warm;
mod workloads;

use damaged::{copy_images, is_refused, manifest_of, replace_manifest, write_manifest};
use meshd_lab::{Extra, Power, Rack, Shape, Wait};
use racks::{
    BOOT, OrEnd, SOON, command_lines, has_secret, kernel_starts, stages, until_phase, up_alone,
};
use serde_json::Value;

const NODE: u8 = 1;
const IMAGE: &str = "debian-12";
/// Less than the root, and enough for stage 1.
const LITTLE_MIB: u32 = 256;
const MEMORY_MIB: u32 = 1536;

#[test]
fn node_without_driver_or_memory_is_refused_and_then_comes_online() {
    let mut intact = Vec::new();
    let mut test = up_alone(|mut options, dir| {
        (options.nodes, options.powered) = (1, false);
        options.extras = vec![vec![Extra::OldClock]];
        options.shape = Shape { memory_mib: MEMORY_MIB, ..options.shape };
        options = options
            .set("enroll.policy", "auto")
            .set("dhcp.lease", "2m")
            .set("profiles.debian.image", IMAGE)
            .set("profiles.debian.overlays", r#"["base", "agent", "ssh", "motd"]"#)
            .set("profiles.debian.writable", "256M")
            .set("defaults.profile", "debian");
        Rack::prepare(&options, &mut |word| eprintln!("{word}")).or_end();
        let blobs = dir.join("blobs");
        copy_images(options.blobs.as_deref().expect("named"), &blobs);
        intact = manifest_of(&blobs, IMAGE);
        write_manifest(&blobs, IMAGE, &without_driver(&intact));
        options.blobs = Some(blobs);
        options
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    is_refused_without_driver(rack);

    rack.power(NODE, Power::Off).or_end();
    replace_manifest(rack, IMAGE, &intact);
    rack.set_memory(LITTLE_MIB).or_end();
    rack.power(NODE, Power::On).or_end();
    is_refused(rack, NODE, "load the root into memory: ");

    rack.power(NODE, Power::Off).or_end();
    rack.set_memory(MEMORY_MIB).or_end();
    rack.power(NODE, Power::On).or_end();
    let node = until_phase(rack, NODE, "online", BOOT);
    came_up_whole(rack, &node);
    running::keeps_what_stage_1_set_up(rack, &node);
}

/// A manifest that knows no driver for the NIC of the node.
fn without_driver(intact: &[u8]) -> Vec<u8> {
    let mut changed: Value = serde_json::from_slice(intact).expect("JSON");
    let drivers = changed["parts"]["nic_drivers"].as_array().expect("the builder lists them");
    assert!(drivers.contains(&"1af4:*".into()) && drivers.contains(&"8086:1533".into()));
    changed["parts"]["nic_drivers"] = ["8086:1533"].into();
    serde_json::to_vec(&changed).expect("JSON")
}

/// Waits until the timeline of the node has the refusal of its NIC.
fn wait_for_driver_refusal(rack: &Rack) -> Value {
    let id = rack.id(NODE).to_string();
    let refusal = rack.wait(BOOT, "the refusal", |rack| {
        let Ok(timeline) = rack.query(&["node", "timeline", &id]) else {
            return Ok(Wait::NotYet("no boot".to_owned()));
        };
        let mut waits = timeline["waits"].as_array().into_iter().flatten();
        let refusal = waits.find(|wait| wait["code"] == "nic_driver_missing").cloned();
        Ok(Wait::some(refusal, timeline.to_string()))
    });
    refusal.or_end()
}

/// iPXE names the NIC: the machine loads nothing, and the timeline has the reason.
fn is_refused_without_driver(rack: &Rack) {
    let refusal = wait_for_driver_refusal(rack);
    let detail = refusal["detail"].as_str().unwrap_or_default();
    assert!(detail.starts_with("image debian-12 has no driver for NIC 1af4:"), "{refusal}");
    assert_eq!(kernel_starts(rack, NODE), 0, "it loaded a kernel");
}

/// Every stage of the chain is on record, and the checks of the node pass.
fn came_up_whole(rack: &Rack, node: &Value) {
    let reached = stages(node);
    let chain = ["ipxe_dhcp", "script", "kernel", "initramfs", "overlay", "os_dhcp", "root"];
    for stage in chain.into_iter().chain(["enrolled", "link", "online"]) {
        assert!(reached.contains(&stage), "it never reached {stage}: {reached:?}");
    }
    assert!(!reached.contains(&"modloop") && !reached.contains(&"packages"), "{reached:?}");
    assert!(kernel_starts(rack, NODE) >= 2, "a boot was refused");
    assert!(command_lines(rack, NODE).iter().all(|line| !has_secret(line)));

    let id = rack.id(NODE).to_string();
    let doctor = rack.query(&["node", "doctor", &id]).or_end();
    assert_eq!(doctor["failures"], 0, "{doctor}");
    let services = doctor["checks"].as_array().into_iter().flatten();
    let services = services.into_iter().find(|check| check["name"] == "services");
    assert!(services.is_some_and(|check| check["status"] == "PASS"), "{doctor}");
    let lines = ["Linux version ", "stage1: ok", "systemd[1]: ", "mesh-agent started"];
    rack.wait(SOON, "the log of the boot", |rack| {
        let log = rack.run_cli(&["node", "logs", &id])?;
        let missing: Vec<&str> = lines.into_iter().filter(|line| !log.contains(line)).collect();
        Ok(Wait::some(missing.is_empty().then_some(()), format!("missing: {missing:?}")))
    })
    .or_end();
}
