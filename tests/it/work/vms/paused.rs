//! Guests that QEMU holds, machines of another boot, and what is left of those that never ran.

use super::guest::{DEADLINE, Guest, HELLO, Node, reaches, says};
use crate::world::write_program;
use meshd_proto::vm::{MAX_VMS, ReportedVmState, VmEntry, VmFailureKind, VmTarget, VmUpdate};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tokio::time::timeout;

/// A file system in memory, so small that a guest fills it; gone when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path, name: &str) -> Self {
        fs::create_dir_all(path).unwrap();
        mount(&["-t", "tmpfs", "-o", "size=4m,mode=0700", name, path.to_str().unwrap()]);
        Small(path.to_owned())
    }

    fn grow(&self) {
        mount(&["-o", "remount,size=128m", self.0.to_str().unwrap()]);
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(args: &[&str]) {
    assert!(Command::new("mount").args(args).status().unwrap().success(), "{args:?}");
}

#[tokio::test]
async fn vm_on_full_store_is_paused_with_reason_and_resumes() {
    let node = Node::new();
    let store = Small::mount(&node.run_folder(), "small");
    let spec = node.spec(
        Guest::Writer,
        json!({ "volumes": [{ "name": "root", "format": "qcow2", "digest": node.image(Guest::Writer), "size": "32M" }] }),
    );
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let failure =
        reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Paused).await.failure.unwrap();
    assert_eq!(failure.kind, VmFailureKind::Paused);
    for word in ["io-error", "volume root", "No space left on device", "meshd vm start"] {
        assert!(failure.detail.contains(word), "{failure:?}");
    }
    // A later agent asks, and does not take it for one that runs.
    drop(vms);
    let mut vms = node.agent();
    let mut reports = vms.watch(spec.uuid).unwrap();
    reaches(&mut reports, ReportedVmState::Paused).await;
    store.grow();
    let before = node.processes();
    // So a newer number reaches one that is there: a start says no more than a restart.
    vms.restart(spec.uuid, DEADLINE, 2).unwrap();
    assert_eq!(reaches(&mut reports, ReportedVmState::Running).await.failure, None);
    // SeaBIOS writes what is left of its own line as soon as the guest lets it have interrupts,
    // which is after the hello.
    assert!(says(&vms, spec.uuid, "!").await.contains(HELLO));
    assert_eq!(node.processes(), before, "it is the same QEMU, and the guest lost nothing");
    vms.release(spec.uuid).await.unwrap();
    assert!(node.processes().is_empty());
}

#[tokio::test]
async fn paused_vm_is_stopped_without_its_grace_time() {
    let node = Node::new();
    let _store = Small::mount(&node.run_folder(), "small");
    let spec = node.spec(
        Guest::Writer,
        json!({ "volumes": [{ "name": "root", "format": "qcow2", "digest": node.image(Guest::Writer), "size": "32M" }] }),
    );
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let mut reports = vms.watch(spec.uuid).unwrap();
    reaches(&mut reports, ReportedVmState::Paused).await;
    // Its grace is longer than anything here waits.
    assert!(vms.stop(spec.uuid, DEADLINE * 10));
    reaches(&mut reports, ReportedVmState::Stopped).await;
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn vm_store_is_bounded_by_free_memory() {
    let node = Node::new();
    let _store = Small::mount(&node.run_folder(), "mesh-machines");
    let size = || {
        let space = rustix::fs::statvfs(node.run_folder()).unwrap();
        space.f_blocks * space.f_frsize
    };
    assert_eq!(size(), 4 << 20);
    let spec = node.spec(Guest::Deaf, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total = total.unwrap().parse::<u64>().unwrap() * 1024;
    assert!(size() != 4 << 20 && size() < total, "{} of {total}", size());
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn vm_of_an_earlier_boot_is_not_started_by_its_restart_policy() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({ "restart": { "when": "always", "delay_s": 1 } }));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    says(&vms, spec.uuid, HELLO).await;
    drop(vms);
    for pid in node.processes() {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    }
    let file = node.files(spec.uuid).join("vm.json");
    let mut stored: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stored["restart_state"]["should_run"], true);
    let boot = stored["boot"].as_str().unwrap().to_owned();
    assert_eq!(boot, fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    stored["boot"] = json!("the one before");
    fs::write(&file, stored.to_string()).unwrap();
    let mut vms = node.agent();
    let report = vms.reports().remove(0);
    assert_eq!(
        (report.state, report.failure.unwrap().kind),
        (ReportedVmState::Failed, VmFailureKind::EndedUnseen)
    );
    // An order starts it, as on any other day.
    vms.start(&spec, 2).unwrap();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn tpm_is_ended_when_qemu_does_not_start() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({ "vtpm": true }));
    let qemu = node.path().join("root/opt/bundles/qemu/bin/qemu-system-x86_64");
    fs::create_dir_all(qemu.parent().unwrap()).unwrap();
    write_program(
        &qemu,
        "#!/bin/sh\ncase \"$*\" in *-version*) exit 0;; esac\necho it cannot be run >&2\nexit 3\n",
    );
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let failure =
        reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Failed).await.failure.unwrap();
    assert!(
        failure.kind == VmFailureKind::NotStarted && failure.log.concat().contains("cannot be run"),
        "{failure:?}"
    );
    assert!(node.files(spec.uuid).join("tpm").exists(), "it had been begun");
    assert_eq!(node.processes(), [0; 0]);
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn vm_over_the_report_limit_hides_no_earlier_vm() {
    let node = Node::new();
    let mut manager = node.manager();
    let run = |uuid: &str, digest: &str| {
        let volumes = json!([{ "name": "root", "format": "qcow2", "digest": digest }]);
        let name = format!("vm-{uuid}");
        let spec = node.spec(
            Guest::Deaf,
            json!({ "uuid": uuid, "name": name, "volumes": volumes, "allow_tcg": false }),
        );
        let want = VmTarget::Run {
            spec: Box::new(spec.clone()),
            start: 1,
            grace_s: 0,
            slots: Vec::new(),
            disks: Default::default(),
        };
        VmEntry { uuid: spec.uuid, desired_state: want }
    };
    let last = run("ffffffff-5566-7788-99aa-bbccddeeff00", &node.image(Guest::Deaf).to_string());
    let uuid = last.uuid;
    manager.apply(1, last);
    let missing = "f".repeat(64);
    (0..=MAX_VMS).for_each(|n| {
        manager.apply(2, run(&format!("{n:08x}-5566-7788-99aa-bbccddeeff00"), &missing))
    });
    let vm_reports = timeout(DEADLINE, async {
        loop {
            if let (_, VmUpdate::All { vms }) = manager.next_update().await
                && vms.len() == MAX_VMS
            {
                return vms;
            }
        }
    });
    let vm_reports = vm_reports.await.expect("as many as there may be");
    assert!(vm_reports.iter().any(|report| report.uuid == uuid), "the one that was there first");
}
