//! Process, mounts and namespaces of a replica.
//!
//! The process has no capability that reaches beyond the replica, gets no new privileges, and sees
//! neither processes nor files nor interfaces of the node. Limits are not here: the agent owns the
//! control group.

use super::seccomp;
use crate::container::replica_paths::ReplicaPaths;
use meshd_proto::container::{ReplicaId, ReplicaSpec};
use meshd_types::{Architecture, failpoint};
use serde_json::{Value, json};

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

/// Options of a mounted volume.
const VOLUME: [&str; 4] = ["bind", "ro", "nosuid", "nodev"];
/// Sets the options of the root again. A hook that does not read its input makes crun fail.
const REMOUNT: &str = "cat >/dev/null && exec mount -o remount,bind,nosuid,nodev \"$0\"";
const HOOK_PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the configuration of a replica, whose root and volumes are mounted at their paths.
pub fn config(
    replica: &ReplicaId,
    spec: &ReplicaSpec,
    paths: &ReplicaPaths,
    architecture: Architecture,
) -> Value {
    let namespaces: Vec<Value> = NAMESPACES.iter().map(|kind| json!({ "type": kind })).collect();
    let seccomp = failpoint::defends("container-seccomp").then(|| seccomp::profile(architecture));
    json!({
        "ociVersion": OCI_VERSION,
        "process": process(spec, &spec.argv, None),
        "root": { "path": paths.root(), "readonly": false },
        "hostname": replica.to_string().replace('.', "-"),
        "mounts": mounts(spec, paths),
        "hooks": hooks(paths),
        "linux": {
            "namespaces": namespaces,
            // Every user may listen on every port: the network belongs to the replica.
            "sysctl": { "net.ipv4.ip_unprivileged_port_start": "0" },
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "seccomp": seccomp,
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

/// Without control group of devices, a device file of an image or a volume would be that device of
/// the node.
fn denies_devices() -> bool {
    failpoint::defends("container-devices")
}

/// crun mounts the root over itself without options. They are set again before it becomes the root.
fn hooks(paths: &ReplicaPaths) -> Value {
    if !denies_devices() {
        return json!({});
    }
    let args = json!(["sh", "-c", REMOUNT, paths.root()]);
    let remount = json!({ "path": "/bin/sh", "args": args, "env": [HOOK_PATH] });
    json!({ "createContainer": [remount] })
}

/// Returns the folders of the root that the runtime mounts to, except those in its own mounts.
pub fn mount_points(spec: &ReplicaSpec) -> Vec<String> {
    if !failpoint::defends("container-mount-links") {
        return Vec::new();
    }
    let own = ["/proc", "/dev", "/sys"].map(str::to_owned);
    own.into_iter().chain(spec.mounts.iter().map(|mount| mount.path.clone())).collect()
}

fn mounts(spec: &ReplicaSpec, paths: &ReplicaPaths) -> Vec<Value> {
    let shared_memory = format!("size={}m", spec.scratch_mib);
    let options: &[&str] = if denies_devices() { &VOLUME } else { &["bind", "ro"] };
    let volumes = spec.mounts.iter().enumerate().map(|(index, mount)| {
        let source = paths.volume(index);
        json!({ "destination": mount.path, "type": "bind", "source": source, "options": options })
    });
    let own = [
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
    ];
    volumes.chain(own).collect()
}

fn mount(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": kind, "options": options })
}
