//! What VFIO needs of the overlay that ships, and what the agent's program says on a machine that
//! has it.

use meshd_proto::{CHECKS, Check, DoctorReport};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Drivers that would take a GPU before a VM could have it.
const GPU_DRIVERS: [&str; 6] = ["nouveau", "nvidia", "amdgpu", "radeon", "i915", "xe"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() { files(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

/// Drivers of GPUs that an overlay's modprobe.d keeps away.
fn kept_away(overlay: &Path) -> Vec<&'static str> {
    let mut found = Vec::new();
    files(&overlay.join("rootfs/etc/modprobe.d"), &mut found);
    let text: String = found.iter().map(|file| fs::read_to_string(file).expect("text")).collect();
    GPU_DRIVERS
        .into_iter()
        .filter(|driver| text.lines().any(|line| line == format!("blacklist {driver}")))
        .collect()
}

#[test]
fn gpu_drivers_are_blacklisted_only_by_the_vfio_overlay() {
    for overlay in fs::read_dir("overlays").expect("there").flatten() {
        let expected =
            if overlay.file_name() == "vfio" { GPU_DRIVERS.to_vec() } else { Vec::new() };
        assert_eq!(kept_away(&overlay.path()), expected, "{}", overlay.path().display());
    }
}

#[test]
fn vfio_service_runs_after_modules_and_before_coldplug_and_agent() {
    let service =
        fs::read_to_string("overlays/vfio/rootfs.alpine/etc/init.d/mesh-vfio").expect("there");
    let words = |key: &str| -> Vec<&str> {
        let line =
            service.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().collect()
    };
    assert!(words("after ").contains(&"modules"));
    assert!(words("before ").contains(&"coldplug") && words("before ").contains(&"mesh-agent"));
    let modules = fs::read_to_string("overlays/vfio/golden/etc/modules").expect("there");
    assert_eq!(modules, "vfio\nvfio_iommu_type1\nvfio_pci\n");
}

#[test]
fn vfio_unit_runs_after_modules_and_before_udev_loads_drivers() {
    let unit = "overlays/vfio/rootfs.systemd/etc/systemd/system/mesh-vfio.service";
    let unit = fs::read_to_string(unit).expect("there");
    for line in [
        "After=systemd-modules-load.service",
        "Before=systemd-udev-trigger.service mesh-agent.service shutdown.target",
        "DefaultDependencies=no",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let modules = "overlays/vfio/golden.systemd/etc/modules-load.d/50-meshd.conf";
    let modules = fs::read_to_string(modules).expect("there");
    assert_eq!(modules, "vfio\nvfio_iommu_type1\nvfio_pci\n");
}

/// A machine with one GPU whose IOMMU is off, and an overlay that wants it.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        fs::write(path, text).expect("written");
    };
    for (name, text) in
        [("vendor", "0x1002"), ("device", "0x5046"), ("class", "0x030000"), ("config", "x")]
    {
        write(&format!("sys/devices/pci0000:00/0000:00:02.0/{name}"), text);
    }
    fs::create_dir_all(root.path().join("sys/bus/pci/devices")).expect("made");
    let link = root.path().join("sys/bus/pci/devices/0000:00:02.0");
    symlink("../../../devices/pci0000:00/0000:00:02.0", link).expect("linked");
    write("proc/cmdline", "intel_iommu=on iommu=pt\n");
    let config = r#"{"version": 1, "node": "0123abcd", "central": "10.77.0.1", "port": 8443, "ca_file": "/etc/meshd/ca.pem",
        "heartbeat_s": 30, "profile": "vfio-host", "vfio": ["class:0300"]}"#;
    write("etc/meshd/agent.json", config);
    let boot = r#"{"version": 1, "node": "0123abcd", "session": "070707070707070707070707", "generation": "",
        "issued_at": "2026-01-01T00:00:00.000Z", "http_port": 8080}"#;
    write("etc/meshd/boot.json", boot);
    root
}

fn agent(root: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-agent"));
    command
        .args(words)
        .arg("--root")
        .arg(root)
        .arg("--config")
        .arg(root.join("etc/meshd/agent.json"));
    command.arg("--boot-file").arg(root.join("etc/meshd/boot.json")).output().expect("it runs")
}

#[test]
fn vfio_bind_prints_one_line_per_unit_and_doctor_counts_ready_ones() {
    let root = machine();
    let bound = agent(root.path(), &["vfio", "bind"]);
    let output_text = String::from_utf8_lossy(&bound.stdout).into_owned();
    let expected =
        "unit without a group (0000:00:02.0): unbound; no IOMMU group: the IOMMU is off\n";
    assert_eq!((output_text.as_str(), bound.status.code()), (expected, Some(1)), "{bound:?}");

    let doctor = agent(root.path(), &["doctor"]);
    let output_text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let last = output_text.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("failures=") && last.ends_with(" 0/1 GPU unit(s) ready"),
        "{output_text}"
    );
    assert!(output_text.contains("no IOMMU groups: disabled by BIOS"), "{output_text}");
    assert_eq!(doctor.status.code(), Some(1));

    let lines = agent(root.path(), &["doctor", "--lines"]);
    let lines = String::from_utf8_lossy(&lines.stdout).into_owned();
    let read = |line: &str| line.parse::<Check>().unwrap_or_else(|error| panic!("{line}: {error}"));
    let checks: Vec<Check> =
        lines.lines().filter(|line| line.starts_with("MESH_CHECK ")).map(read).collect();
    let json = agent(root.path(), &["doctor", "-o", "json"]);
    let report: DoctorReport = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((checks.len(), report.units_total), (CHECKS.len(), 1), "{lines}");
    let verdicts =
        |checks: &[Check]| checks.iter().map(|it| (it.name.clone(), it.status)).collect::<Vec<_>>();
    assert_eq!(verdicts(&checks), verdicts(&report.checks));

    let facts = agent(root.path(), &["facts"]);
    let facts: serde_json::Value = serde_json::from_slice(&facts.stdout).expect("JSON");
    assert_eq!(facts["units"][0]["state"], "unbound");
}
