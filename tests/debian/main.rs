//! Debian 12 by mmdebstrap: an image without a driver for the NIC, and a root with one flipped bit,
//! are refused, and the timeline shows why. The intact root comes online, gives a GPU to a VM, and
//! runs tasks. A root from an OCI image of umoci comes online, too. Nodes with BIOS, with UEFI and
//! with a tethered root reboot by kexec. `make test-debian` runs all of it; the images are built if
//! they are missing.

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
mod cluster;
mod nic;
mod oci;
mod selinux;
mod tethered;
mod workloads;

use meshd_lab::{Extra, Identity, Power, Rack, Shape, Wait};
use meshd_types::Digest;
use racks::{
    BOOT, OrEnd, SOON, command_lines, count, has_secret, kernel_starts, stages, until_phase,
    up_alone,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

const NODE: u8 = 1;
const IMAGE: &str = "debian-12";
/// A byte of the superblock of the squashfs: the first block that the kernel reads.
const FLIPPED: usize = 96;

#[test]
fn debian_root_with_flipped_bit_is_refused_and_intact_one_comes_online() {
    let mut manifests = None;
    let mut blobs = PathBuf::new();
    let mut workloads = None;
    let mut test = up_alone(|mut options, dir| {
        (options.nodes, options.powered) = (1, false);
        options.extras = vec![vec![Extra::Iommu, Extra::Gpu]];
        // One processor: QEMU 7.2 loses what Linux patches in its own text when the first guest
        // begins, if another processor runs the same code.
        options.shape = Shape { cpus: 1, memory_mib: 2048, ..options.shape };
        let overlays = r#"["base", "agent", "ssh", "motd", "vfio", "kvm-host", "tuning", "trial"]"#;
        workloads = Some((guest::image(dir), dir.join("lab/site.toml")));
        options = options
            .set("enroll.policy", "auto")
            .set("site.overlays_dir", &workloads::with_trial(dir).display().to_string())
            .set("profiles.debian.image", IMAGE)
            .set("profiles.debian.overlays", overlays)
            .set("profiles.debian.writable", "256M")
            .set("profiles.debian.vfio.devices", r#"["class:0300"]"#)
            .set("profiles.debian.vars", "{ kvm_nat = true, tuning_sysctl = [\"vm.swappiness = 7\"], tuning_memlock = \"unlimited\" }")
            .set("groups.one.nodes", &format!("{:?}", [Identity::at(NODE).node_id().to_string()]))
            .set("defaults.profile", "debian");
        Rack::prepare(&options, &mut |word| eprintln!("{word}")).or_end();
        blobs = dir.join("blobs");
        manifests = Some(damage(options.blobs.as_deref().expect("named"), &blobs));
        options.blobs = Some(blobs.clone());
        options
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    is_refused_without_driver(rack);
    let Manifests { flipped, intact } = manifests.expect("made");
    replace_manifest(rack, &blobs, &flipped);
    is_refused_with_its_reason(rack);

    replace_manifest(rack, &blobs, &intact);
    let node = until_phase(rack, NODE, "online", BOOT);
    came_up_whole(rack, &node);
    let (image, site) = workloads.expect("made");
    workloads::run(rack, &image, &site);
}

fn manifest(blobs: &Path) -> PathBuf {
    blobs.join("images").join(IMAGE).with_extension("json")
}

fn replace_manifest(rack: &Rack, blobs: &Path, content: &[u8]) {
    fs::write(manifest(blobs), content).expect("written");
    rack.run_cli(&["reload"]).or_end();
}

/// Manifests of the image under test.
struct Manifests {
    /// Its root has a flipped bit and the digest of its new content, and the root hash of its tree.
    flipped: Vec<u8>,
    intact: Vec<u8>,
}

/// Copies built images. The manifest of one knows no driver for the NIC of the node.
fn damage(from: &Path, to: &Path) -> Manifests {
    for folder in ["images", "sha256"] {
        fs::create_dir_all(to.join(folder)).expect("made");
        for entry in fs::read_dir(from.join(folder)).expect("images are built") {
            let path = entry.expect("readable").path();
            // Beside each image's current manifest is the folder of its versions.
            if path.is_file() {
                let name = path.file_name().expect("named");
                fs::copy(&path, to.join(folder).join(name)).expect("copied");
            }
        }
    }
    let intact = fs::read(manifest(to)).expect("the image is built");
    let mut changed: Value = serde_json::from_slice(&intact).expect("JSON");
    let drivers = changed["parts"]["nic_drivers"].as_array().expect("the builder lists them");
    assert!(drivers.contains(&"1af4:*".into()) && drivers.contains(&"8086:1533".into()));
    let mut driverless = changed.clone();
    driverless["parts"]["nic_drivers"] = ["8086:1533"].into();
    fs::write(manifest(to), serde_json::to_vec(&driverless).expect("JSON")).expect("written");
    let root = &mut changed["parts"]["root"];
    let digest = root["digest"].as_str().expect("a digest").to_owned();
    let mut bytes = fs::read(to.join("sha256").join(digest)).expect("the blob is there");
    bytes[FLIPPED] ^= 1;
    let digest = Digest::of(&bytes).to_string();
    fs::write(to.join("sha256").join(&digest), bytes).expect("written");
    root["digest"] = digest.into();
    Manifests { flipped: serde_json::to_vec(&changed).expect("JSON"), intact }
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

/// dm-verity refuses the block; stage 1 reports it, and nothing of the root runs.
fn is_refused_with_its_reason(rack: &Rack) {
    let id = rack.id(NODE).to_string();
    let timeline = rack.wait(BOOT, "the report of stage 1", |rack| {
        let Ok(timeline) = rack.query(&["node", "timeline", &id]) else {
            return Ok(Wait::NotYet("no boot".to_owned()));
        };
        let is_reported = timeline["failure"].is_string();
        Ok(Wait::some(is_reported.then_some(timeline), "no failure"))
    });
    let timeline = timeline.or_end();
    let reason = timeline["failure"].as_str().unwrap_or_default();
    assert!(reason.starts_with("mount squashfs at "), "{timeline}");
    let session = timeline["session"].as_str().expect("a boot");
    let expected = format!("stage1: FAILED: {reason}\n");
    // The log follows the record of the failure.
    rack.wait(SOON, "the reason in the log of the boot", |rack| {
        let log = rack.run_cli(&["node", "logs", &id, "--session", session]);
        let is_there = log.as_ref().is_ok_and(|log| *log == expected);
        Ok(Wait::on(is_there, format!("{log:?}")))
    })
    .or_end();
    assert_eq!(count(rack, NODE, "certificate_issued"), 0);
    assert!(!rack.serial(NODE).contains("systemd[1]"), "nothing of the root ran");
}

/// Every stage of the chain is on record, and the checks of the node pass.
fn came_up_whole(rack: &Rack, node: &Value) {
    let reached = stages(node);
    let chain = ["ipxe_dhcp", "script", "kernel", "initramfs", "overlay", "os_dhcp", "root"];
    for stage in chain.into_iter().chain(["enrolled", "link", "online"]) {
        assert!(reached.contains(&stage), "it never reached {stage}: {reached:?}");
    }
    assert!(!reached.contains(&"modloop") && !reached.contains(&"packages"), "{reached:?}");
    assert!(kernel_starts(rack, NODE) >= 2, "the first boot was refused");
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
