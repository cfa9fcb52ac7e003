//! A Debian kernel that lost its overlay runs nothing: the initramfs has no program, the kernel
//! panics, and the machine reboots.

use crate::{
    IMAGE,
    damaged::manifest_of,
    racks::{STAGE, blobs},
};
use meshd_proto::stage1::STAGE1_PROGRAM;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// QEMU, which is ended with its test.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn kernel_without_overlay_has_no_program_panics_and_reboots() {
    let blobs = blobs();
    let manifest: Value = serde_json::from_slice(&manifest_of(&blobs, IMAGE)).expect("JSON");
    let part = |name: &str| {
        let digest = manifest["parts"][name]["digest"].as_str().expect("a digest");
        blobs.join("sha256").join(digest)
    };
    let [kernel, modules] = ["kernel", "modules"].map(part);
    holds_modules_and_firmware_only(&modules);
    let serial = until_reboot(&kernel, &modules);
    for line in
        ["Kernel panic - not syncing: VFS: Unable to mount root fs", "Rebooting in 10 seconds"]
    {
        assert!(serial.contains(line), "no `{line}` in {serial}");
    }
    for never in ["unpacking failed", "stage1: ", "systemd["] {
        assert!(!serial.contains(never), "`{never}` in {serial}");
    }
}

/// Lists the initramfs: no file may be executed.
fn holds_modules_and_firmware_only(initramfs: &Path) {
    // The blob is padded with zeros, which zstd reports.
    let list = "zstd -dcq \"$1\" | cpio --quiet --list --verbose";
    let listed = Command::new("sh").args(["-c", list, "sh"]).arg(initramfs).output();
    let listed = String::from_utf8(listed.expect("cpio").stdout).expect("UTF-8");
    let files = || listed.lines().filter(|line| line.starts_with('-'));
    assert!(files().any(|line| line.contains("virtio_net.ko")), "{listed}");
    for file in files() {
        let (mode, _) = file.split_once(' ').expect("a mode");
        let name = file.rsplit(' ').next().expect("a name").trim_start_matches('/');
        let is_known = ["lib/", "usr/lib/"].iter().any(|folder| name.starts_with(folder));
        assert!(!mode.contains('x') && is_known, "{file}");
    }
}

/// Boots the kernel as a loader does that lost the overlay. Returns what it wrote to its serial
/// port until it rebooted, which ends QEMU.
fn until_reboot(kernel: &Path, initramfs: &Path) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let serial: PathBuf = folder.path().join("serial.log");
    let line = format!("rdinit={STAGE1_PROGRAM} panic=10 console=ttyS0,115200");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-nodefaults", "-no-reboot", "-display", "none", "-nic", "none"])
        .args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-m", "512", "-append", &line])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-serial")
        .arg(format!("file:{}", serial.display()));
    let child = qemu.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("QEMU");
    let mut machine = Machine(child);
    let end = Instant::now() + STAGE;
    let written = || {
        let bytes = std::fs::read(&serial).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    loop {
        if let Some(status) = machine.0.try_wait().expect("a child") {
            assert!(status.success(), "QEMU: {status}");
            return written();
        }
        assert!(Instant::now() < end, "no reboot: {}", written());
        thread::park_timeout(Duration::from_millis(100));
    }
}
