//! The program of the overlay `kvm-host`, run as OpenRC and systemd do.

use crate::world::write_program;
use std::{fs, path::Path, process::Command};

#[test]
fn kvm_host_service_without_kvm_warns_and_creates_no_device() {
    let dir = tempfile::tempdir().unwrap();
    // No file system is mounted and nothing of this machine is written by it.
    for (name, status) in [("modprobe", 1), ("mountpoint", 0)] {
        write_program(&dir.path().join(name), &format!("#!/bin/sh\nexit {status}\n"));
    }
    let settings = dir.path().join("settings");
    fs::write(&settings, "ksm=1\n").unwrap();
    let ksm = dir.path().join("ksm");
    fs::write(&ksm, "0").unwrap();
    let program = "overlays/kvm-host/rootfs/usr/libexec/meshd/kvm-host";
    let started = |device: &Path| {
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(program));
        command.env("PATH", path).env("settings", &settings);
        let output = command.env("kvm_device", device).env("ksm_run", &ksm).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let none = dir.path().join("none");
    assert!(started(&none).contains("cannot be opened"));
    assert!(!none.exists(), "the doctor would take it for KVM");
    assert_eq!(started(Path::new("/dev/null")), "");
    assert_eq!(fs::read_to_string(ksm).unwrap(), "1\n");
}
