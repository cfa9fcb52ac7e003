//! Process, mounts and namespaces of a replica.
//!
//! The process has no capability that reaches beyond the replica, gets no new privileges, and sees
//! neither processes nor files nor interfaces of the node. Limits are not here: the agent owns the
//! control group.

use super::seccomp;
use meshd_proto::container::{ReplicaId, ReplicaSpec};
use meshd_types::Architecture;
use serde_json::{Value, json};
use std::path::Path;

const OCI_VERSION: &str = "1.0.2";
/// What the user root of an image needs: to change owners and users, and to signal processes.
const ROOT_CAPABILITIES: [&str; 7] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
];
/// OOM score: the kernel kills containers before the agent.
const OOM_SCORE: i32 = 500;
/// The namespaces of a replica. There is no user namespace: Linux 6.1 mounts no squashfs with
/// other owners.
const NAMESPACES: [&str; 6] = ["pid", "mount", "ipc", "uts", "network", "cgroup"];
/// Files that show or change the node.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Returns the configuration of a replica. `root` is the mount point of its root file system.
pub fn config(
    replica: &ReplicaId,
    spec: &ReplicaSpec,
    root: &Path,
    architecture: Architecture,
) -> Value {
    let namespaces: Vec<Value> = NAMESPACES.iter().map(|kind| json!({ "type": kind })).collect();
    json!({
        "ociVersion": OCI_VERSION,
        "process": process(spec, &spec.argv, None),
        "root": { "path": root, "readonly": false },
        "hostname": replica.to_string().replace('.', "-"),
        "mounts": mounts(spec),
        "linux": {
            "namespaces": namespaces,
            // Every user may listen on every port: the network belongs to the replica.
            "sysctl": { "net.ipv4.ip_unprivileged_port_start": "0" },
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "seccomp": seccomp::profile(architecture),
        },
    })
}

/// Returns a process of a replica. `terminal` is the value of `TERM`, if it has a terminal.
pub fn process(spec: &ReplicaSpec, argv: &[String], terminal: Option<&str>) -> Value {
    let mut env: Vec<String> =
        spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if let Some(terminal) = terminal {
        env.retain(|variable| !variable.starts_with("TERM="));
        env.push(format!("TERM={terminal}"));
    }
    let capabilities: &[&str] = if spec.uid == 0 { &ROOT_CAPABILITIES } else { &[] };
    json!({
        "terminal": terminal.is_some(),
        "user": { "uid": spec.uid, "gid": spec.gid },
        "args": argv,
        "env": env,
        "cwd": spec.working_dir,
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
        },
        "noNewPrivileges": true,
        "oomScoreAdj": OOM_SCORE,
    })
}

fn mounts(spec: &ReplicaSpec) -> Value {
    let shared_memory = format!("size={}m", spec.scratch_mib);
    json!([
        mount("/proc", "proc", &["nosuid", "nodev", "noexec"]),
        mount("/dev", "tmpfs", &["nosuid", "noexec", "strictatime", "mode=755", "size=64k"]),
        mount(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", &["nosuid", "nodev", "noexec", "mode=1777", &shared_memory]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "nodev", "noexec"]),
        mount("/sys", "sysfs", &["nosuid", "nodev", "noexec", "ro"]),
    ])
}

fn mount(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": kind, "options": options })
}
