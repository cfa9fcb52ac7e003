//! The service of the overlay `kvm-host`, run as OpenRC would.

use crate::world::write_program;
use std::{path::Path, process::Command};

/// What of OpenRC the service uses.
const OPENRC: &str = "ebegin() { :; }\newarn() { echo \"$@\"; }\neend() { return \"$1\"; }\n";

#[test]
fn kvm_host_service_without_kvm_warns_and_creates_no_device() {
    let dir = tempfile::tempdir().unwrap();
    let modprobe = dir.path().join("modprobe");
    write_program(&modprobe, "#!/bin/sh\nexit 1\n");
    let service =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays/kvm-host/rootfs/etc/init.d/kvm-host");
    let started = |device: &Path| {
        // No file system is mounted and nothing of this machine is written by it.
        let script =
            format!("{OPENRC}mountpoint() {{ return 0; }}\n. {}\nstart\n", service.display());
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(script)
            .env("PATH", path)
            .env("kvm_device", device)
            .env("ksm_run", dir.path().join("no"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let none = dir.path().join("none");
    assert!(started(&none).contains("cannot be opened"));
    assert!(!none.exists(), "the doctor would take it for KVM");
    assert_eq!(started(Path::new("/dev/null")), "");
}
