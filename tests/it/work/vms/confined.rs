//! What QEMU of a real guest is, as the kernel shows it: whose, in which group, with which rights.

use super::{
    guest::{Guest, HELLO, Node, reaches, says},
    pid_of,
};
use meshd_proto::vm::ReportedVmState;
use serde_json::json;
use std::{fs, os::unix::fs::MetadataExt as _};

/// One field of /proc/PID/status.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn runs(
    node: &Node,
    uuid: &str,
    more: serde_json::Value,
) -> (meshd_agent::vm::Vms, meshd_proto::vm::VmSpec) {
    let mut all = json!({ "uuid": uuid });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec = node.spec(Guest::Echo, all);
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    (vms, spec)
}

#[tokio::test]
async fn vm_processes_have_their_own_user_and_no_capabilities() {
    let node = Node::new();
    let (mut vms, spec) = runs(
        &node,
        "11223344-5566-7788-99aa-bbccddee0c01",
        json!({ "firmware": "uefi", "vtpm": true, "memory": "256M" }),
    )
    .await;
    let pids = node.processes();
    assert_eq!(pids.len(), 2, "QEMU and swtpm");
    let user = fs::metadata(format!("/proc/{}", pids[0])).unwrap().uid();
    assert!(user >= 1_000_000, "{user}");
    for pid in pids {
        assert_eq!(field(pid, "Uid"), format!("{user} {user} {user} {user}"));
        assert!(!field(pid, "Gid").split(' ').any(|group| group == "0"));
        assert_eq!(field(pid, "Groups"), "");
        assert_eq!(field(pid, "NoNewPrivs"), "1");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&field(pid, set), 16).unwrap(), 0, "{set}");
        }
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "500");
    }
    for file in fs::read_dir(node.files(spec.uuid)).unwrap().flatten() {
        let found = file.metadata().unwrap();
        let name = file.file_name();
        // A link has all rights, and gives none.
        let is_open = found.mode() & 0o077 != 0
            && !found.file_type().is_dir()
            && !found.file_type().is_symlink();
        assert!(
            !is_open || name.to_string_lossy().ends_with(".sock") || name == "user",
            "{name:?} is everybody's"
        );
        if ["vm.json", "qemu.log", "user"].iter().any(|own| name == *own) {
            assert_eq!(found.uid(), 0, "{name:?} is the agent's");
        }
    }
    vms.release(spec.uuid).await.unwrap();
    assert!(node.processes().is_empty());
}

#[tokio::test]
async fn vm_qemu_runs_in_a_seccomp_sandbox() {
    let node = Node::new();
    let (mut vms, spec) = runs(&node, "11223344-5566-7788-99aa-bbccddee0c02", json!({})).await;
    let pid = pid_of(&node, spec.uuid).as_raw_nonzero().get();
    assert_eq!(field(pid, "Seccomp"), "2", "a filter");
    says(&vms, spec.uuid, HELLO).await;
    vms.release(spec.uuid).await.unwrap();
}

#[tokio::test]
async fn vm_processes_run_in_a_control_group_with_limits() {
    let node = Node::new();
    let (mut vms, spec) = runs(&node, "11223344-5566-7788-99aa-bbccddee0c03", json!({})).await;
    let pid = pid_of(&node, spec.uuid).as_raw_nonzero().get();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned();
    assert!(own.starts_with("/meshd-vms-") && own.ends_with(&spec.uuid.to_string()), "{groups}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let root = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).unwrap();
    let group =
        std::path::Path::new(root.split(' ').nth(1).unwrap()).join(own.trim_start_matches('/'));
    // A kernel whose controllers belong to version 1 has none of these files.
    for (file, is_set) in [
        ("memory.max", |text: &str| text.parse::<u64>().is_ok_and(|bytes| bytes >= 64 << 20)),
        ("pids.max", |text: &str| text.parse::<u64>().is_ok()),
        ("cpu.max", |text: &str| !text.starts_with("max")),
    ] as [(&str, fn(&str) -> bool); 3]
    {
        if let Ok(text) = fs::read_to_string(group.join(file)) {
            assert!(is_set(text.trim()), "{file}: {text}");
        }
    }
    vms.release(spec.uuid).await.unwrap();
    assert!(!group.exists(), "the group goes with its machine");
}

#[tokio::test]
async fn vms_have_different_users_and_restarted_agent_adopts_both() {
    let node = Node::new();
    let (mut vms, one) = runs(&node, "11223344-5566-7788-99aa-bbccddee0c04", json!({})).await;
    let two = node.spec(
        Guest::Echo,
        json!({ "uuid": "11223344-5566-7788-99aa-bbccddee0c05", "name": "two" }),
    );
    vms.start(&two, 1).unwrap();
    reaches(&mut vms.watch(two.uuid).unwrap(), ReportedVmState::Running).await;
    let user = |uuid| {
        let pid = pid_of(&node, uuid).as_raw_nonzero();
        fs::metadata(format!("/proc/{pid}")).unwrap().uid()
    };
    assert_ne!(user(one.uuid), user(two.uuid));
    let before = node.processes();
    drop(vms);
    let mut vms = node.agent();
    for spec in [&one, &two] {
        says(&vms, spec.uuid, HELLO).await;
        assert!(vms.console(spec.uuid).unwrap().write(b"H".to_vec()));
        says(&vms, spec.uuid, &format!("{HELLO}I")).await;
    }
    assert_eq!(node.processes(), before, "neither was run again");
    for spec in [&one, &two] {
        vms.release(spec.uuid).await.unwrap();
    }
}

#[tokio::test]
async fn vm_processes_share_no_temporary_files_and_queues_with_their_node() {
    let node = Node::new();
    let uuid = "11223344-5566-7788-99aa-bbccddee0c08";
    let (mut vms, spec) =
        runs(&node, uuid, json!({ "firmware": "uefi", "vtpm": true, "memory": "256M" })).await;
    let queues = |process: &str| fs::read_link(format!("/proc/{process}/ns/ipc")).unwrap();
    let pids = node.processes();
    assert_eq!(pids.len(), 2, "QEMU and swtpm");
    for pid in pids {
        assert_ne!(queues(&pid.to_string()), queues("self"));
        for folder in ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"] {
            let ours = tempfile::NamedTempFile::new_in(folder).unwrap();
            let inside = format!("/proc/{pid}/root{}", ours.path().display());
            assert!(!fs::exists(&inside).unwrap(), "{inside} is the node's");
            fs::write(&inside, "").unwrap();
            assert!(
                fs::read_dir(format!("/proc/{pid}/root{folder}")).unwrap().count() == 1,
                "{inside}"
            );
        }
    }
    vms.release(spec.uuid).await.unwrap();
}
