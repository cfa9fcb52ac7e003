//! A Debian root in an OCI image of umoci, an OCI writer that is not ours: mmdebstrap makes the tree
//! with the packages of `debian-12`, two further layers add and hide a file. Nodes with BIOS and
//! with UEFI refuse it with a flipped bit, boot it, and give their GPUs to VMs, while a stranger
//! asks for their boots.

use crate::{
    attacker::{self, asks_in_vain, guesses_in_vain, hides_its_secrets},
    damaged::{flip, is_refused_for_its_bit, replace_manifest},
    guest, overlays,
    racks::{BOOT, OrEnd, repository, stages, until_phase, until_stage, up_alone},
    units, workloads,
};
use meshd_lab::{Extra, Firmware, Mix, Power, Rack, Shape};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const NODES: [u8; 2] = [1, 2];
const IMAGE: &str = "debian-oci";
const OVERLAYS: &str =
    r#"["base", "agent", "ssh", "motd", "vfio", "kvm-host", "tuning", "trial", "peek"]"#;
const VARS: &str =
    r#"{ kvm_nat = true, tuning_sysctl = ["vm.swappiness = 7"], tuning_memlock = "unlimited" }"#;
const ADDED: &str = "/etc/added-by-a-layer";
/// A file of the tree that the last layer hides.
const HIDDEN: &str = "/etc/issue.net";

#[test]
fn debian_root_in_an_oci_image_of_umoci_boots_on_bios_and_uefi() {
    let mut manifests = None;
    let mut workloads = None;
    let mut test = up_alone(|mut options, dir| {
        let images = dir.join("images");
        overlays::copy(&repository().join("images"), &images);
        fs::create_dir(images.join(IMAGE)).expect("made");
        fs::write(images.join("debian-oci/image.toml"), recipe(&layout(dir))).expect("written");
        let overlays = units::with_trial_and_peek(dir);
        workloads = Some((guest::image(dir), dir.join("lab/site.toml")));
        options.firmware = Mix::of([Firmware::Bios, Firmware::Uefi]);
        options.powered = false;
        options.extras = vec![vec![Extra::Iommu, Extra::Gpu]];
        // One processor: QEMU 7.2 loses what Linux patches in its own text when the first guest
        // begins, if another processor runs the same code.
        options.shape = Shape { cpus: 1, memory_mib: 2048, ..options.shape };
        // Each run writes another image: it is not left among those that racks share.
        options.blobs = Some(dir.join("blobs"));
        options.only_profile = Some(IMAGE.to_owned());
        let options = options
            .set("enroll.policy", "auto")
            .set("site.images_dir", &images.display().to_string())
            .set("site.overlays_dir", &overlays.display().to_string())
            .set("profiles.debian-oci.image", IMAGE)
            .set("profiles.debian-oci.overlays", OVERLAYS)
            .set("profiles.debian-oci.writable", "256M")
            .set("profiles.debian-oci.vfio.devices", r#"["class:0300"]"#)
            .set("profiles.debian-oci.vars", VARS)
            // With interrupt remapping the kernel panics if its timer is late, as it is on a busy
            // machine that emulates.
            .set("profiles.debian-oci.kernel_args", r#"["no_timer_check"]"#)
            .set("defaults.profile", IMAGE);
        Rack::prepare(&options, &mut |word| eprintln!("{word}")).or_end();
        manifests = Some(flip(&dir.join("blobs"), IMAGE));
        options
    });
    let rack = &mut test.rack;
    is_built_from_layers(rack);
    let stranger = rack.neighbour("stranger", attacker::ADDRESS).or_end();
    asks_in_vain(rack, &stranger, NODES[0], "before the boot");

    let manifests = manifests.expect("made");
    replace_manifest(rack, IMAGE, &manifests.flipped);
    for place in NODES {
        rack.power(place, Power::On).or_end();
    }
    until_stage(rack, NODES[0], "script");
    asks_in_vain(rack, &stranger, NODES[0], "during the boot");
    guesses_in_vain(rack, &stranger);
    for place in NODES {
        is_refused_for_its_bit(rack, place);
        // No boot that has begun with this root goes on with the other one.
        rack.power(place, Power::Off).or_end();
    }

    replace_manifest(rack, IMAGE, &manifests.intact);
    for place in NODES {
        rack.power(place, Power::On).or_end();
    }
    for place in NODES {
        runs_the_root(rack, place);
        hides_its_secrets(rack, place);
        asks_in_vain(rack, &stranger, place, "after the boot");
    }
    let (image, site) = workloads.expect("made");
    workloads::run(rack, NODES, &image, &site);
}

/// The image has the digests of manifest and layers, and the packages of the tree.
fn is_built_from_layers(rack: &Rack) {
    let manifest = rack.site().blobs_dir.join("images/debian-oci.json");
    let manifest = fs::read(manifest).expect("the image is built");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let sources = manifest["parts"]["sources"].as_object().expect("of kind root");
    let sources: Vec<&str> = sources.keys().map(String::as_str).collect();
    assert_eq!(sources, ["layer 001", "layer 002", "layer 003", "manifest"]);
    assert!(manifest["packages"]["systemd-sysv"].is_string(), "{manifest}");
}

fn runs_the_root(rack: &Rack, place: u8) {
    let node = until_phase(rack, place, "online", BOOT);
    assert!(stages(&node).contains(&"root"), "{node}");
    let id = rack.id(place).to_string();
    let node = rack.query(&["node", "show", &id]).or_end();
    let system = node["facts"]["versions"]["os"].as_str().unwrap_or_default();
    assert!(system.starts_with("Debian GNU/Linux 12"), "{node}");
    let doctor = rack.query(&["node", "doctor", &id]).or_end();
    assert_eq!(doctor["failures"], 0, "{doctor}");
    let look = format!("cat {ADDED}; stat -c %a /usr/bin/passwd; test ! -e {HIDDEN}");
    let files = rack.run_cli(&["node", "exec", &id, "--", "/bin/sh", "-c", &look]).or_end();
    assert_eq!(files, "added\n4755\n");
}

fn recipe(layout: &Path) -> String {
    format!(
        "kind = \"root\"\narch = \"x86_64\"\ndescription = \"Debian 12 in an OCI image of umoci\"\n\
         [source]\noci = \"{}:debian\"\n\
         [modules]\nkeep = [\"drivers/net/virtio_net.ko\", \"drivers/virtio\"]\n",
        layout.display()
    )
}

/// The packages of the image `debian-12`.
fn packages() -> String {
    let recipe = fs::read_to_string(repository().join("images/debian-12/image.toml"));
    let recipe = recipe.expect("the recipe");
    let (_, list) = recipe.split_once("packages = [").expect("a list");
    let (list, _) = list.split_once(']').expect("its end");
    let names = list.split(',').map(|name| name.trim().trim_matches('"'));
    names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(",")
}

/// Makes an OCI layout with an image of three layers.
fn layout(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    let layout = dir.join("layout");
    let added = dir.join("added");
    let include = format!("--include={}", packages());
    let mut mmdebstrap = Command::new("mmdebstrap");
    run(mmdebstrap.args(["--quiet", "--variant=minbase", &include, "bookworm"]).arg(&tree));
    fs::write(&added, "added\n").expect("written");
    let image = format!("{}:debian", layout.display());
    let umoci = |args: &[&str]| run(Command::new("umoci").args(args));
    umoci(&["init", "--layout", layout.to_str().expect("plain")]);
    umoci(&["new", "--image", &image]);
    umoci(&["insert", "--image", &image, tree.to_str().expect("plain"), "/"]);
    umoci(&["insert", "--image", &image, added.to_str().expect("plain"), ADDED]);
    umoci(&["insert", "--image", &image, "--whiteout", HIDDEN]);
    fs::remove_dir_all(&tree).expect("removed");
    layout
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}
