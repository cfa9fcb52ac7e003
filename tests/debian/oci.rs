//! A Debian root in an OCI image of umoci, an OCI writer that is not ours: mmdebstrap makes the tree,
//! two further layers add and hide a file. Nodes with BIOS and with UEFI boot it, and get another
//! profile by kexec.

use crate::racks::{BOOT, OrEnd, reboot_warm, repository, stages, until_phase, up_alone};
use meshd_lab::{Firmware, Mix, Rack, Shape};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const NODES: [u8; 2] = [1, 2];
const PACKAGES: &str = "dbus,iproute2,kmod,linux-image-amd64,openssh-server,systemd-sysv,udev";
const ADDED: &str = "/etc/added-by-a-layer";
/// A file of the tree that the last layer hides.
const HIDDEN: &str = "/etc/issue.net";

#[test]
fn debian_root_in_an_oci_image_of_umoci_boots_on_bios_and_uefi() {
    let test = up_alone(|mut options, dir| {
        let images = dir.join("images");
        crate::overlays::copy(&repository().join("images"), &images);
        fs::create_dir(images.join("debian-oci")).expect("made");
        fs::write(images.join("debian-oci/image.toml"), recipe(&layout(dir))).expect("written");
        options.firmware = Mix::of([Firmware::Bios, Firmware::Uefi]);
        options.shape = Shape { memory_mib: 1536, ..options.shape };
        // Each run writes another image: it is not left among those that racks share.
        options.blobs = Some(dir.join("blobs"));
        options.only_profile = Some("debian-oci".to_owned());
        options
            .set("enroll.policy", "auto")
            .set("site.images_dir", &images.display().to_string())
            .set("profiles.debian-oci.image", "debian-oci")
            .set("profiles.debian-oci.overlays", r#"["base", "agent", "ssh", "motd"]"#)
            .set("profiles.debian-oci.writable", "256M")
            .set("defaults.profile", "debian-oci")
            .set("profiles.debian-next.extends", "debian-oci")
            .set("profiles.debian-next.warm", "allow")
    });
    is_built_from_layers(&test.rack);
    for place in NODES {
        until_phase(&test.rack, place, "online", BOOT);
        runs_the_root(&test.rack, place, "debian-oci");
    }
    for place in NODES {
        let id = test.rack.id(place).to_string();
        test.rack.run_cli(&["node", "assign-profile", &id, "debian-next"]).or_end();
        let node = reboot_warm(&test.rack, place);
        assert_eq!(node["conditions"], serde_json::json!([]), "{node}");
        runs_the_root(&test.rack, place, "debian-next");
    }
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

/// The node runs the root of the image, as this profile.
fn runs_the_root(rack: &Rack, place: u8, profile: &str) {
    let id = rack.id(place).to_string();
    let node = rack.query(&["node", "show", &id]).or_end();
    assert_eq!(node["profile"], profile, "{node}");
    assert!(stages(&node).contains(&"root"), "{node}");
    let system = node["facts"]["versions"]["os"].as_str().unwrap_or_default();
    assert!(system.starts_with("Debian GNU/Linux 12"), "{node}");
    let doctor = rack.query(&["node", "doctor", &id]).or_end();
    assert_eq!(doctor["failures"], 0, "{doctor}");
    let look =
        format!("cat {ADDED}; stat -c %a /usr/bin/passwd; test ! -e {HIDDEN}; cat /etc/motd");
    let files = rack.run_cli(&["node", "exec", &id, "--", "/bin/sh", "-c", &look]).or_end();
    assert!(files.starts_with("added\n4755\n"), "{files}");
    assert!(files.contains(&format!(", profile {profile}\n")), "another overlay: {files}");
}

fn recipe(layout: &Path) -> String {
    format!(
        "kind = \"root\"\narch = \"x86_64\"\ndescription = \"Debian 12 in an OCI image of umoci\"\n\
         [source]\noci = \"{}:debian\"\n\
         [modules]\nkeep = [\"drivers/net/virtio_net.ko\", \"drivers/virtio\"]\n",
        layout.display()
    )
}

/// Makes an OCI layout with an image of three layers.
fn layout(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    let layout = dir.join("layout");
    let added = dir.join("added");
    let include = format!("--include={PACKAGES}");
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
