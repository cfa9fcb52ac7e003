//! Virtual machines on this machine: real QEMU, emulated, with guests of one boot sector.

pub mod central;
mod confined;
mod console;
mod manager;
mod disk;
mod firmware;
pub mod guest;
mod paused;
pub mod isolated;
pub mod linux;
mod overlay;
mod limits;
mod typing;
mod console_log;

use self::guest::{DEADLINE, Guest, HELLO, Node, reaches, says};
use meshd_agent::vm::{StartError, Vms};
use meshd_proto::vm::{ReportedVmState, VmFailureKind, VmRefusalReason, VmSpec};
use serde_json::json;
use std::{fs, time::Duration};
use tokio::time::timeout;

fn pid_of(node: &Node, uuid: meshd_types::SystemUuid) -> rustix::process::Pid {
    let text = fs::read_to_string(node.files(uuid).join("qemu.pid")).unwrap();
    rustix::process::Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

#[tokio::test]
async fn vm_runs_with_console_and_is_released_without_leftovers() {
    let node = Node::new();
    let spec = node.spec(Guest::Echo, json!({ "cloud_init": { "user_data": "#cloud-config\n" } }));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    // `vm create --start --wait` took this report for the result of the order.
    let begun = vms.watch(spec.uuid).unwrap().borrow().clone();
    assert!(
        begun.state != ReportedVmState::Stopped || begun.start != Some(1),
        "not stopped by an order that has yet to begin"
    );
    vms.start(&spec, 1).unwrap();
    let mut reports = vms.watch(spec.uuid).unwrap();
    reaches(&mut reports, ReportedVmState::Running).await;
    says(&vms, spec.uuid, HELLO).await;
    assert_eq!(node.processes().len(), 1, "ordered twice, run once");
    assert!(vms.console(spec.uuid).unwrap().write(b"H".to_vec()));
    says(&vms, spec.uuid, &format!("{HELLO}I")).await;
    vms.release(spec.uuid).await.unwrap();
    vms.release(spec.uuid).await.unwrap();
    assert!(node.processes().is_empty() && vms.reports().is_empty());
    assert_eq!(node.vm_folders(), 0);
}

#[tokio::test]
async fn vm_shuts_down_on_power_button_and_restarts_with_its_disk() {
    let node = Node::new();
    let spec = node.spec(Guest::Polite, json!({ "restart": { "when": "always" } }));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let mut reports = vms.watch(spec.uuid).unwrap();
    says(&vms, spec.uuid, HELLO).await;
    assert!(vms.stop(spec.uuid, DEADLINE));
    assert_eq!(reaches(&mut reports, ReportedVmState::Stopped).await.failure, None);
    let log = fs::read_to_string(node.files(spec.uuid).join("qemu.log")).unwrap();
    assert!(!log.contains("terminating on signal"), "nobody had to end it: {log}");
    assert!(node.files(spec.uuid).join("volume0.qcow2").exists());
    vms.start(&spec, 1).unwrap();
    reaches(&mut reports, ReportedVmState::Running).await;
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn vm_that_ignores_power_button_is_ended_after_grace_time() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let mut reports = vms.watch(spec.uuid).unwrap();
    says(&vms, spec.uuid, HELLO).await;
    assert!(vms.stop(spec.uuid, Duration::from_millis(200)));
    assert_eq!(reaches(&mut reports, ReportedVmState::Stopped).await.failure, None);
    let log = fs::read_to_string(node.files(spec.uuid).join("qemu.log")).unwrap();
    assert!(log.contains("terminating on signal 15"), "{log}");
    assert!(node.processes().is_empty());
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn killed_qemu_fails_at_once_or_restarts_by_policy() {
    let node = Node::new();
    let spec = node.spec(
        Guest::Deaf,
        json!({ "restart": { "when": "on-failure", "delay_s": 1, "attempts": 1 } }),
    );
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let mut reports = vms.watch(spec.uuid).unwrap();
    let mut changes = vms.changes();
    for again in [true, false] {
        reaches(&mut reports, ReportedVmState::Running).await;
        changes.mark_unchanged();
        let pid = pid_of(&node, spec.uuid);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        timeout(DEADLINE, changes.changed()).await.unwrap().unwrap();
        let report = reaches(
            &mut reports,
            if again { ReportedVmState::Waiting } else { ReportedVmState::Failed },
        )
        .await;
        let failure = report.failure.unwrap();
        assert_eq!((failure.kind, report.restarts), (VmFailureKind::Crashed, 1));
        assert!(failure.detail.contains("killed by signal 9"), "{}", failure.detail);
    }
    assert!(node.processes().is_empty());
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn vm_that_powers_off_is_stopped() {
    let node = Node::new();
    let spec = node.spec(Guest::Short, json!({ "restart": { "when": "on-failure" } }));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let report = reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Stopped).await;
    assert_eq!((report.failure, report.restarts), (None, 0));
    assert!(says(&vms, spec.uuid, HELLO).await.ends_with(HELLO), "its last words are kept");
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn restarted_agent_adopts_running_vm() {
    let node = Node::new();
    let spec = node.spec(Guest::Echo, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    says(&vms, spec.uuid, HELLO).await;
    let before = node.processes();
    drop(vms);
    let mut vms = node.agent();
    let mut reports = vms.watch(spec.uuid).unwrap();
    assert_eq!(reports.borrow().state, ReportedVmState::Running, "it never was anything else");
    says(&vms, spec.uuid, HELLO).await;
    // The console is taken over when it answers again; what is typed before waits.
    assert!(vms.console(spec.uuid).unwrap().write(b"X".to_vec()));
    says(&vms, spec.uuid, &format!("{HELLO}Y")).await;
    vms.start(&spec, 1).unwrap();
    assert_eq!((node.processes().len(), node.processes()), (1, before));
    rustix::process::kill_process(pid_of(&node, spec.uuid), rustix::process::Signal::KILL).unwrap();
    let failure = reaches(&mut reports, ReportedVmState::Failed).await.failure.unwrap();
    assert_eq!(failure.kind, VmFailureKind::Crashed);
    drop(vms);
    let mut vms = node.agent();
    assert_eq!(vms.reports()[0].failure, Some(failure), "what happened is remembered");
    vms.release(spec.uuid).await.unwrap();
    assert_eq!(node.vm_folders(), 0);
}

#[tokio::test]
async fn vm_that_ended_without_agent_is_reported_by_the_next_agent() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    says(&vms, spec.uuid, HELLO).await;
    let pid = pid_of(&node, spec.uuid);
    drop(vms);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // It is this process's child: the next agent would take it for one that is about to end.
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    let mut vms = node.agent();
    let report = reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Failed).await;
    assert_eq!(report.failure.unwrap().kind, VmFailureKind::EndedUnseen);
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn qemu_start_failure_is_reported_with_its_log() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({}));
    // What it wrote before is kept, and this is no disk.
    fs::create_dir_all(node.files(spec.uuid)).unwrap();
    fs::write(node.files(spec.uuid).join("volume0.qcow2"), [b'x'; 4096]).unwrap();
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let report = reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Failed).await;
    let failure = report.failure.unwrap();
    assert_eq!(failure.kind, VmFailureKind::NotStarted);
    assert!(failure.log.iter().any(|line| line.contains("qcow2")), "{failure:?}");
    vms.release(spec.uuid).await.unwrap();
}

/// Starts a VM that the node refuses, releases it, and returns the refusal.
async fn refusal(vms: &mut Vms, spec: &VmSpec) -> String {
    vms.start(spec, 1).unwrap();
    let report = reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Failed).await;
    let failure = report.failure.unwrap();
    assert_eq!((failure.kind, report.restarts), (VmFailureKind::Refused, 0));
    vms.release(spec.uuid).await.unwrap();
    failure.detail
}

#[tokio::test]
async fn refused_vm_leaves_no_files() {
    let node = Node::new();
    let sound = node.spec(Guest::Deaf, json!({}));
    let mut vms = node.agent();
    let cases = [
        (json!({ "allow_tcg": false }), VmRefusalReason::KvmMissing),
        (json!({ "memory": "32T" }), VmRefusalReason::MemoryExceeded),
        (json!({ "cpu": "no-such-model" }), VmRefusalReason::CpuUnknown),
        (json!({ "units": ["0000:ff:1f.7"] }), VmRefusalReason::UnitMissing),
        (
            json!({ "nics": [{ "mac": "52:54:00:00:00:01", "bridge": "nobr0" }] }),
            VmRefusalReason::BridgeMissing,
        ),
    ];
    for (more, reason) in cases {
        let detail = refusal(&mut vms, &node.spec(Guest::Deaf, more)).await;
        assert!(detail.contains(&format!("{}: ", reason.as_str())), "{detail}");
    }
    fs::remove_file(node.path().join("root/usr")).unwrap();
    let detail = refusal(&mut vms, &sound).await;
    assert!(detail.contains("qemu_missing"), "{detail}");
    assert!(node.vm_folders() == 0 && vms.reports().is_empty());
}

#[tokio::test]
async fn changed_specification_of_started_vm_is_refused() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    let other = node.spec(Guest::Deaf, json!({ "vcpus": 2 }));
    assert!(matches!(vms.start(&other, 1), Err(StartError::Differs { .. })));
    let same_name =
        node.spec(Guest::Deaf, json!({ "uuid": "11223344-5566-7788-99aa-bbccddeeff01" }));
    // The supervisors of two VMs start in any order: this one has its name.
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    assert!(refusal(&mut vms, &same_name).await.contains("name_taken"));
    vms.release(spec.uuid).await.unwrap();
    assert!(node.processes().is_empty());
    vms.start(&same_name, 1).unwrap();
    // In the midst of its start.
    vms.release(same_name.uuid).await.unwrap();
    assert_eq!(node.vm_folders(), 0);
}

#[tokio::test]
async fn damaged_vm_folder_is_not_adopted_and_can_be_released() {
    let node = Node::new();
    let spec = node.spec(Guest::Deaf, json!({}));
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    drop(vms);
    fs::write(node.files(spec.uuid).join("vm.json"), "{").unwrap();
    let mut vms = node.agent();
    assert!(vms.reports().is_empty());
    vms.release(spec.uuid).await.unwrap();
    assert!(node.processes().is_empty());
    assert!(!node.files(spec.uuid).exists());
}
