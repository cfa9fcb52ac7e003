//! Bundles on a real node: fetched by digest, mounted before services, and their glibc programs run on musl.

use crate::{
    overlays::copy,
    racks::{BOOT, OrEnd, SOON, until_phase, until_written, up},
};
use meshd::lab::Power;
use std::{fs, path::Path};

const NODE: u8 = 1;

/// Runs what the bundles bring, as a service of the node would.
const TRIAL: &str = r#"#!/sbin/openrc-run
description="runs the programs of the bundles"

start() {
	{
		echo "TRIAL-MOUNTS $(grep -c ' /opt/bundles/.* squashfs ro' /proc/mounts)"
		echo "TRIAL-MPI $(mpiexec.hydra -launcher fork -n 2 /bin/echo rank | tr '\n' ' ')"
		echo "TRIAL-RUN $(qemu-run /opt/bundles/qemu/libexec/qemu-img --version | head -n 1)"
		echo "TRIAL-ACCEL $(qemu-system-x86_64 -accel help | tr '\n' ' ')"
		echo "TRIAL-IMG $(qemu-img create -f qcow2 /tmp/trial.qcow2 1M >/dev/null && head -c 3 /tmp/trial.qcow2)"
		echo "TRIAL-END"
	} >/dev/ttyS0 2>&1
}
"#;
const TRIAL_MANIFEST: &str = "description = \"bundles on trial\"\n[services]\ndefault = [\"trial\"]\n[files.\"/etc/init.d/trial\"]\nmode = \"0755\"\n";

#[test]
fn a_nodes_bundles_are_mounted_by_digest_and_their_programs_run() {
    let mut test = up(|mut options, dir| {
        (options.nodes, options.powered) = (1, false);
        let overlays = dir.join("overlays");
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays"), &overlays);
        fs::create_dir_all(overlays.join("trial/rootfs/etc/init.d")).expect("made");
        fs::write(overlays.join("trial/overlay.toml"), TRIAL_MANIFEST).expect("written");
        fs::write(overlays.join("trial/rootfs/etc/init.d/trial"), TRIAL).expect("written");
        options
            .set("enroll.policy", "auto")
            .set("site.overlays_dir", &overlays.display().to_string())
            .set("profiles.discovery.overlays", "[\"base\", \"agent\", \"trial\"]")
            .set("profiles.discovery.bundles", "[\"mpi\", \"qemu\"]")
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    until_phase(rack, NODE, "online", BOOT);
    let serial = until_written(rack, NODE, "TRIAL-END", SOON);
    let said = |word: &str| {
        let line = serial.lines().find_map(|line| line.split_once(&format!("{word} ")));
        line.map(|(_, rest)| rest.trim().to_owned()).unwrap_or_else(|| panic!("no {word} in\n{serial}"))
    };
    assert_eq!(said("TRIAL-MOUNTS"), "2");
    assert_eq!(said("TRIAL-MPI"), "rank rank");
    let run = said("TRIAL-RUN");
    assert!(run.starts_with("qemu-img version"), "a program without a starter of its own: {run}");
    let accel = said("TRIAL-ACCEL");
    assert!(accel.contains("kvm") && accel.contains("tcg"), "emulation is a plug-in of the bundle: {accel}");
    assert_eq!(said("TRIAL-IMG"), "QFI");
}
