//! A Debian root with a policy of SELinux, labelled by its own `setfiles`. What the overlay added has
//! the labels that `matchpathcon` of the policy names, and files of the root keep theirs.

use crate::racks::{BOOT, OrEnd, repository, until_phase, up_alone};
use meshd_lab::{Power, Shape};
use std::{fs, path::Path, process::Command};

const NODE: u8 = 1;
const PACKAGES: &str = "dbus,iproute2,kmod,linux-image-amd64,openssh-server,policycoreutils,selinux-policy-default,selinux-utils,systemd-sysv,udev";
const PERMISSIVE: &str = r#"sed -i s/^SELINUX=.*/SELINUX=permissive/ "$1/etc/selinux/config""#;
const LABEL: &str =
    r#"chroot "$1" setfiles -F /etc/selinux/default/contexts/files/file_contexts /"#;
/// Prints files whose label is not that of the policy, and the number of files.
const COMPARE: &str = r#"
getenforce
count=0
compare() {
	count=$((count + 1))
	expected=$(matchpathcon -n "$1") label=$(stat -c %C "$1")
	[ "$label" = "$expected" ] || echo "$1 has $label, not $expected"
}
for file in / /etc /etc/meshd /usr/bin/passwd; do compare "$file"; done
while read -r digest file; do compare "${file#\*}"; done </etc/meshd/manifest.sha256
[ $count -gt 12 ] && echo "that is all"
"#;

#[test]
fn files_of_the_overlay_have_the_labels_of_the_policy() {
    let mut test = up_alone(|mut options, dir| {
        let images = dir.join("images");
        crate::overlays::copy(&repository().join("images"), &images);
        fs::create_dir(images.join("selinux")).expect("made");
        let root = labelled_root(dir);
        fs::write(images.join("selinux/image.toml"), recipe(&root)).expect("written");
        (options.nodes, options.powered) = (1, false);
        options.shape = Shape { cpus: 1, memory_mib: 1536, ..options.shape };
        options.blobs = Some(dir.join("blobs"));
        options.only_profile = Some("selinux".to_owned());
        options
            .set("enroll.policy", "auto")
            .set("site.images_dir", &images.display().to_string())
            .set("profiles.selinux.image", "selinux")
            .set("profiles.selinux.overlays", r#"["base", "agent", "ssh", "motd"]"#)
            .set("profiles.selinux.writable", "256M")
            .set("profiles.selinux.kernel_args", r#"["security=selinux", "selinux=1"]"#)
            .set("defaults.profile", "selinux")
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    until_phase(rack, NODE, "online", BOOT);
    let id = rack.id(NODE).to_string();
    let exec = ["node", "exec", "--user", "root", &id, "--", "/bin/sh", "-c", COMPARE];
    assert_eq!(rack.run_cli(&exec).or_end(), "Permissive\nthat is all\n");
}

fn recipe(root: &Path) -> String {
    format!(
        "kind = \"root\"\narch = \"x86_64\"\ndescription = \"Debian 12 with SELinux\"\n\
         [source]\ndir = \"{}\"\n\
         [modules]\nkeep = [\"drivers/net/virtio_net.ko\", \"drivers/virtio\"]\n",
        root.display()
    )
}

fn labelled_root(dir: &Path) -> std::path::PathBuf {
    let tree = dir.join("tree");
    let include = format!("--include={PACKAGES}");
    let hooks = [PERMISSIVE, LABEL].map(|hook| format!("--customize-hook={hook}"));
    let output = Command::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase", &include])
        .args(hooks)
        .arg("bookworm")
        .arg(&tree)
        .output()
        .expect("mmdebstrap, from `.ci/setup test`");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    tree
}
