//! An overlay is read whole or not at all, and nothing outside it can get in.

use super::*;
use std::os::unix::{fs::symlink, net::UnixListener};

/// One overlay `one`, with this manifest and these files below `rootfs/`.
fn one(manifest: &str, files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    let rootfs = root.path().join("one/rootfs");
    fs::create_dir_all(&rootfs).expect("made");
    fs::write(root.path().join("one/overlay.toml"), manifest).expect("written");
    for file in files {
        let path = rootfs.join(file);
        fs::create_dir_all(path.parent().expect("has one")).expect("made");
        fs::write(path, format!("content of {file}\n")).expect("written");
    }
    root
}

fn faults(root: &tempfile::TempDir) -> Vec<String> {
    let Faults(faults) = read_overlays(root.path()).expect_err("has faults");
    let root = format!("{}/", root.path().display());
    faults.iter().map(|fault| fault.to_string().replace(&root, "")).collect()
}

#[test]
fn what_the_manifest_says_and_what_lies_in_the_folder_come_together() {
    let manifest = r#"
        description = "all there is"
        packages = ["openssh"]
        modules = ["vfio", "vfio_pci"]
        [services]
        default = ["sshd"]
        [files."/etc/secretive"]
        mode = "0600"
        owner = "0:42"
        [files."/usr/bin/mesh-agent"]
        source = "agent"
        [directories."/var/empty"]
        mode = "0700"
        [links]
        "/etc/localtime" = "/usr/share/zoneinfo/UTC"
    "#;
    let root = one(manifest, &["etc/secretive", "etc/name.j2"]);
    symlink("../secretive", root.path().join("one/rootfs/etc/link")).expect("made");
    let overlays = read_overlays(root.path()).unwrap_or_else(|faults| panic!("{faults}"));
    let overlay = &overlays[&"one".parse().expect("plain")];
    let entry = |path: &str| &overlay.entries[&SafePath::new(path).expect("plain")];
    assert_eq!((entry("/etc/secretive").mode, entry("/etc/secretive").owner), (0o600, (0, 42)));
    assert!(matches!(entry("/etc/name").source, Source::Template { .. }));
    assert_eq!(entry(AGENT_PATH).source, Source::Agent);
    assert_eq!(entry("/etc/link").source, Source::Link("../secretive".into()));
    assert_eq!(entry("/etc/localtime").source, Source::Link("/usr/share/zoneinfo/UTC".into()));
    assert_eq!((&entry("/var/empty").source, entry("/var/empty").mode), (&Source::Directory, 0o700));
    assert_eq!(overlay.modules, ["vfio", "vfio_pci"]);
    assert!(overlay.services[&Runlevel::Default].contains("sshd"));
}

#[test]
fn every_fault_is_reported_at_once_with_its_line_and_a_hint() {
    let manifest = "packages = [\"a b\", \"ok\", \"ok\"]\ncolour = 1\n[services]\nevening = [\"x\"]\n\
        [files.\"/etc/absent\"]\nmode = \"0600\"\n[files.\"etc/x\"]\n[files.\"/etc/../x\"]\n[files.\"/etc/x\"]\nmode = 600\nowner = \"root:root\"\n";
    let faults = faults(&one(manifest, &["etc/x"])).join("\n");
    for wanted in [
        "one/overlay.toml:1: has no description",
        "one/overlay.toml:1: \"a b\" is not a name",
        "one/overlay.toml:1: `ok` is here twice",
        "one/overlay.toml:2: unknown key `colour`; known here: description",
        "one/overlay.toml:4: unknown key `evening`; known here: sysinit",
        "one/overlay.toml:5: there is no file /etc/absent in rootfs/; add rootfs/etc/absent",
        "one/overlay.toml:7: `etc/x` does not begin with `/`",
        "one/overlay.toml:8: `/etc/../x` has a `.`, `..`",
        "one/overlay.toml:10: `mode` is not four octal digits",
        "one/overlay.toml:11: `owner` is not user and group number",
    ] {
        assert!(faults.contains(wanted), "{wanted}\nnot in\n{faults}");
    }
}

#[test]
fn nothing_from_outside_its_folder_gets_into_an_overlay() {
    let root = one("description = \"x\"\n", &["etc/x"]);
    let rootfs = root.path().join("one/rootfs");
    symlink("/etc/shadow", rootfs.join("absolute")).expect("made");
    symlink("../../../../etc", rootfs.join("climbs")).expect("made");
    symlink("x/../../..", rootfs.join("etc/climbs")).expect("made");
    let _socket = UnixListener::bind(rootfs.join("socket")).expect("bound");
    let faults = faults(&root);
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(faults[0].starts_with("one/rootfs/absolute: is a link that leaves the overlay: /etc/shadow"), "{faults:?}");
    assert!(faults.iter().any(|fault| fault.contains("socket: is neither a file")), "{faults:?}");
}

#[test]
fn files_that_meshd_writes_and_files_too_large_are_refused() {
    let root = one(
        "description = \"x\"\n",
        &["etc/apk/world", "etc/runlevels/boot/x", "etc/meshd/boot.json", "etc/modules-load.d/x"],
    );
    fs::write(root.path().join("one/rootfs/large"), vec![0; MAX_FILE as usize + 1]).expect("written");
    let faults = faults(&root);
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(
        faults.iter().any(|fault| fault.contains("/etc/apk/world") && fault.contains("packages = [")),
        "{faults:?}"
    );
}

#[test]
fn the_digest_follows_content_and_not_the_description() {
    let read = |manifest: &str| {
        let root = one(manifest, &["etc/x"]);
        let overlays = read_overlays(root.path()).expect("no faults");
        overlays.values().next().expect("one overlay").digest
    };
    let plain = read("description = \"a\"\n");
    assert_eq!(plain, read("description = \"b\"\n"));
    assert_ne!(plain, read("description = \"a\"\n[files.\"/etc/x\"]\nmode = \"0600\"\n"));
    assert_ne!(plain, read("description = \"a\"\npackages = [\"p\"]\n"));
}
