//! Tests of the result of a merge: overlays that are valid alone, and that no machine could boot
//! together.

use super::super::{
    boot_faults, render_public,
    tests::{folder, from},
};
use crate::catalog::overlay::System;
use meshd_config::Delivery;
use meshd_proto::stage1::RootMode;
use meshd_types::Digest;
use std::{path::Path, process::Command};

/// Copies the shipped overlays and adds an overlay `t`.
fn with_overlay(manifest: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = folder(&[("t/overlay.toml", &format!("description = \"x\"\n{manifest}\n"))]);
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("overlays");
    for name in ["base", "agent", "motd"] {
        let copied = Command::new("cp").arg("-r").arg(shipped.join(name)).arg(root.path()).status();
        assert!(copied.expect("cp runs").success());
    }
    for (path, content) in files {
        let path = root.path().join("t/rootfs").join(path);
        std::fs::create_dir_all(path.parent().expect("has one")).expect("made");
        std::fs::write(path, content).expect("written");
    }
    root
}

fn faults(root: &tempfile::TempDir, names: &[&str]) -> Vec<String> {
    let sample = from(root.path(), names);
    let found: Vec<String> = boot_faults(&sample.input()).iter().map(ToString::to_string).collect();
    assert_eq!(
        render_public(&sample.input()).is_err(),
        !found.is_empty(),
        "a rendering for a boot is tested: {found:?}"
    );
    found
}

#[test]
fn overlays_that_no_machine_can_boot_are_refused_with_their_fault() {
    let manifests = [
        (
            "remove = [\"/usr/bin/mesh-agent\"]",
            "t/overlay.toml:2: profile compute would not boot: no overlay brings the agent",
        ),
        ("remove = [\"/etc\"]", "/etc/init.d/mesh-agent"),
        ("remove = [\"/etc/meshd\"]", "/etc/meshd/agent.json"),
        ("[services]\nremove = [\"mesh-agent\"]", "the service mesh-agent is removed"),
        ("[links]\n\"/bin\" = \"/x\"", "/bin must be a folder"),
        ("[links]\n\"/usr/lib\" = \"/lib\"", "/usr/lib must be a folder"),
        ("[links]\n\"/sbin/init\" = \"/bin/x\"", "/sbin/init replaces a program"),
        ("[directories.\"/var/run/x\"]", "/var/run/x is at or below /var/run, a link to /run"),
        ("[directories.\"/dev/x\"]", "/dev/x is below /dev, which is mounted over"),
    ];
    for (manifest, why) in manifests {
        let found = faults(&with_overlay(manifest, &[]), &["base", "agent", "t"]);
        assert!(
            found.iter().any(|fault| fault.contains(why)),
            "{manifest}: {why}\nnot in\n{found:#?}"
        );
        assert!(found.iter().all(|fault| fault.contains("\n  hint: ")), "{found:?}");
    }
    let files = [
        ("proc/x", "/proc/x is below /proc"),
        ("sys/x", "/sys/x is below /sys"),
        ("run/x", "/run/x is below /run"),
        ("lib", "/lib must be a folder"),
        ("bin/sh", "/bin/sh replaces a program"),
        ("etc/shadow", "/etc/shadow has no line of root"),
    ];
    for (path, why) in files {
        let found = faults(&with_overlay("", &[(path, "x\n")]), &["base", "agent", "t"]);
        assert!(found.iter().any(|fault| fault.contains(why)), "{path}: {why}\nnot in\n{found:#?}");
    }
    let blunt = "[files.\"/etc/init.d/mesh-agent\"]\nmode = \"0644\"\nreplace = true";
    let found =
        faults(&with_overlay(blunt, &[("etc/init.d/mesh-agent", "x\n")]), &["base", "agent", "t"]);
    assert!(
        found.iter().any(|fault| fault.contains("is not executable: its mode is 0644")),
        "{found:?}"
    );
}

#[test]
fn file_that_starts_nothing_of_meshd_is_refused() {
    let replace = |path: &str| format!("[files.\"/{path}\"]\nmode = \"0755\"\nreplace = true");
    let files = [
        ("etc/inittab", "::sysinit:/bin/mine\n", "no line with `openrc sysinit`"),
        (
            "etc/inittab",
            "::sysinit:/sbin/openrc sysinit\n::sysinit:/sbin/openrc boot\n# openrc default\n",
            "`openrc default`",
        ),
        ("etc/network/interfaces", "auto lo\n", "/etc/network/interfaces has no line with"),
        ("etc/init.d/mesh-agent", "", "/etc/init.d/mesh-agent is no program"),
    ];
    for (path, content, why) in files {
        let found =
            faults(&with_overlay(&replace(path), &[(path, content)]), &["base", "agent", "t"]);
        assert!(found.iter().any(|fault| fault.contains(why)), "{path}: {why}\nnot in\n{found:#?}");
    }
    let more = with_overlay("[append]\n\"/etc/inittab\" = [\"tty1::respawn:/bin/true\"]", &[]);
    assert_eq!(faults(&more, &["base", "agent", "t"]), [""; 0]);
}

#[test]
fn root_image_without_stage1_unit_or_initrd_delivery_is_refused() {
    let masks = "systems = [\"systemd\"]\n[systemd]\nmasked = [\"mesh-agent.service\"]";
    let root = with_overlay(masks, &[]);
    let found = |names: &[&str], delivery, stage1| {
        let mut sample = from(root.path(), names).on(System::Systemd);
        sample.site.boot.delivery = delivery;
        sample.image.stage1 = stage1;
        boot_faults(&sample.input()).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let stage1 = Some(Digest::of(b"stage1"));
    let shipped = ["base", "agent", "motd"];
    assert_eq!(found(&shipped, Delivery::Initrd, stage1), [""; 0]);
    let cases = [
        (found(&["base"], Delivery::Initrd, stage1), "no overlay brings the agent"),
        (
            found(&["base", "agent", "t"], Delivery::Initrd, stage1),
            "no overlay enables the unit mesh-agent.service",
        ),
        (found(&shipped, Delivery::Url, stage1), "needs the overlay as an initrd"),
        (found(&shipped, Delivery::Initrd, None), "stage 1 is missing"),
    ];
    for (faults, cause) in cases {
        assert!(faults.len() == 1 && faults[0].contains(cause), "{cause}: {faults:?}");
    }
}

#[test]
fn tethered_root_needs_an_image_of_kind_root() {
    let root = with_overlay("systems = [\"alpine\", \"systemd\"]", &[]);
    let found = |system| {
        let mut sample = from(root.path(), &["base", "agent", "motd"]).on(system);
        sample.profile.root_mode = RootMode::Tethered;
        sample.image.stage1 = Some(Digest::of(b"stage1"));
        boot_faults(&sample.input()).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(found(System::Systemd), [""; 0]);
    let faults = found(System::Alpine);
    assert!(faults.len() == 1 && faults[0].contains("needs an image of kind root"), "{faults:?}");
}

#[test]
fn overlay_that_does_not_support_the_system_of_the_image_is_refused() {
    let sample = |manifest: &str, system| {
        let root = with_overlay(manifest, &[]);
        let mut sample = from(root.path(), &["base", "agent", "t"]).on(system);
        sample.image.stage1 = Some(Digest::of(b"stage1"));
        render_public(&sample.input()).map(drop).map_err(|faults| faults.to_string())
    };
    for (manifest, system, other) in [
        ("", System::Alpine, System::Systemd),
        ("systems = [\"systemd\"]", System::Systemd, System::Alpine),
    ] {
        assert_eq!(sample(manifest, system), Ok(()));
        let faults = sample(manifest, other).expect_err("unsupported");
        let expected = format!("overlay t does not support {other}, the system of image");
        assert!(faults.contains(&expected), "{faults}");
    }
    assert_eq!(sample("systems = [\"alpine\", \"systemd\"]", System::Systemd), Ok(()));
}

#[test]
fn profile_without_base_or_agent_is_refused_and_shipped_overlays_boot() {
    let root = with_overlay("", &[]);
    assert!(faults(&root, &["base"])[0].contains("no overlay brings the agent"));
    assert!(
        faults(&root, &["agent"]).iter().any(|fault| fault.contains("/etc/network/interfaces"))
    );
    assert!(faults(&root, &[])[0].contains("overlays = [\"base\", \"agent\"]"));
    assert_eq!(faults(&root, &["base", "agent", "motd", "t"]), [""; 0]);
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("overlays");
    let all = ["base", "agent", "motd", "tuning", "ssh", "kvm-host", "vfio", "bridge", "mpi"];
    assert_eq!(boot_faults(&from(&shipped, &all).input()), []);
}
