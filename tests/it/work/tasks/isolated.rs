//! What a task leaves in the kernel and in the files of its node for the next one, and what the
//! programs of VMs and tasks have of their node.

use super::rig::{LEFT, Rig};
use crate::work::vms::isolated::WITHOUT_NFTABLES;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::SystemTime,
};

/// The user of all tasks here.
const USER: &str = "4321";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the program of the leftovers as a task: exit code, its lines, its errors.
fn run(rig: &Rig, verb: &str, user: &str) -> (i32, Vec<String>, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/work/tasks/leftovers.py");
    let file = rig.file("leftovers.py");
    fs::copy(script, &file).unwrap();
    let (code, out, errors) = rig.run(&[
        "--nodes",
        "1",
        "--launcher",
        "none",
        "--user",
        user,
        "--",
        "/usr/bin/python3",
        &file,
        verb,
    ]);
    (code, out.lines().map(str::to_owned).collect(), errors)
}

#[test]
fn task_finds_nothing_that_an_earlier_task_of_its_user_left() {
    let rig = Rig::new();
    let (code, left, errors) = run(&rig, "leave", USER);
    assert_eq!(code, 0, "{errors}");
    for place in [
        "session-keyring",
        "user-keyring",
        "user-session-keyring",
        "system-v",
        "/tmp",
        "/dev/shm",
        "queue",
    ] {
        assert!(left.contains(&format!("{place} left")), "{place} of {left:?}");
    }
    let (code, found, errors) = run(&rig, "find", USER);
    let _ = fs::remove_file(Path::new("/run/lock").join(LEFT));
    assert_eq!((code, found), (0, Vec::new()), "{errors}");
    rig.is_clean();
}

#[test]
fn task_is_refused_if_its_user_keyring_cannot_be_cleared() {
    let rig = Rig::new();
    // The kernel keeps a locked keyring until it ends, and process IDs return: each run has the
    // user of its millisecond.
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let user = (100_000 + time.as_millis() % 1_000_000_000).to_string();
    let (code, _, errors) = run(&rig, "lock", &user);
    assert_eq!(code, 0, "{errors}");
    let (code, _, errors) = run(&rig, "find", &user);
    assert!(
        code == 1 && errors.contains(&format!("cannot clear the keyrings of user {user}")),
        "{code} {errors}"
    );
    let (code, _, errors) = run(&rig, "find", USER);
    assert_eq!(code, 0, "other users run: {errors}");
}

/// Root of a user namespace of its own: tries to see a file of the node, and to leave the control
/// group of the task.
const UNCOVER: &str = r#"
id -u
umount -l /tmp; umount -l /dev/shm
mkdir /tmp/all; mount --rbind / /tmp/all; umount -l /tmp/all/tmp; umount -l /tmp/all/dev/shm
mkdir /tmp/root; mount --bind / /tmp/root
ls $1 /tmp/all$1 /tmp/root$1 /proc/1/root$1
groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
mount -o remount,bind,rw $groups
echo 0 >$groups/cgroup.procs && echo left
"#;

#[test]
fn task_in_a_user_namespace_uncovers_no_file_and_control_group_of_its_node() {
    let rig = Rig::new();
    for folder in ["/tmp", "/dev/shm"] {
        let ours = tempfile::NamedTempFile::new_in(folder).unwrap();
        let path = ours.path().to_str().unwrap();
        let command = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--cgroup",
            "sh",
            "-c",
            UNCOVER,
            "sh",
            path,
        ];
        let (_, out, errors) =
            rig.run(&[&["--nodes", "1", "--launcher", "none", "--"], &command[..]].concat());
        assert_eq!(out, "0\n", "{errors}");
    }
    rig.is_clean();
}

/// Leaves data on the node, as root in namespaces of its own; then runs a program of mesh-agent
/// that becomes the one that looks for it.
const NODE: &str = r#"
import ctypes, os, socket, subprocess, sys
devices, queues = sys.argv[1] + "dev", sys.argv[2]
subprocess.run(["mount", "-t", "mqueue", "none", queues], check=True)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(250, 1, None) >= 0
assert libc.syscall(248, b"user", b"meshd-test-left", b"x", 1, -3) >= 0
# A /dev and a /run with a system log.
os.makedirs(f"{devices}/shm")
subprocess.run(["cp", "-a", "/dev/null", "/dev/urandom", devices], check=True)
subprocess.run(["mount", "--bind", devices, "/dev"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
os.makedirs("/run/systemd/journal")
os.mkdir("/run/lock")
logs = []
for path in ["/dev/log", "/run/systemd/journal/socket"]:
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.bind(path)
    os.chmod(path, 0o666)
    logs.append(log)
open(f"{queues}/meshd-test-left", "w")
os.chmod(f"{queues}/meshd-test-left", 0o666)
sys.exit(subprocess.run(sys.argv[3:]).returncode)
"#;

/// Runs a command after mesh-agent entered as `verb`, with what a node has.
fn enter(verb: &[&str], command: &[&str]) -> Output {
    let dir = tempfile::tempdir_in("/var/lib").unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for folder in ["queues", "work", "shm", "tmp", "var-tmp", "run-lock"] {
        fs::create_dir(path(folder)).unwrap();
    }
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/work/tasks/leftovers.py"),
        path("leftovers.py"),
    )
    .unwrap();
    let place = |word: &&str| match *word {
        "PROCS" => format!("--procs={}", path("procs")),
        "SHM" => format!("--shm={}", path("shm")),
        "WORK" => format!("--dir={}", path("work")),
        "FOLDER" => format!("--folder={}", dir.path().display()),
        "SCRIPT" => path("leftovers.py"),
        "QUEUES" => path("queues"),
        other => other.to_owned(),
    };
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--ipc",
        "--net",
        "/usr/bin/python3",
        "-c",
        NODE,
        &path(""),
        &path("queues"),
    ]);
    unshare
        .arg(env!("CARGO_BIN_EXE_mesh-agent"))
        .args(verb.iter().chain(command).map(place).collect::<Vec<_>>());
    unshare.output().unwrap()
}

/// What mesh-agent becomes for a task and for a VM; another user than that of the tasks.
const ENTERED: [&[&str]; 2] = [
    &["task-enter", "PROCS", "--uid", "4322", "WORK", "SHM", "--"],
    &["vm-enter", "--uid", "4322", "--gid", "4322", "FOLDER", "--"],
];

#[test]
fn programs_of_tasks_and_vms_share_no_keys_queues_and_logs_with_their_node() {
    for verb in ENTERED {
        let found = enter(verb, &["/usr/bin/python3", "SCRIPT", "find", "QUEUES"]);
        assert_eq!(
            (found.status.code(), text(&found.stdout).as_str()),
            (Some(0), ""),
            "{}",
            text(&found.stderr)
        );
    }
}

#[test]
fn task_has_a_session_of_its_own_and_no_descriptor_of_the_agent() {
    let program =
        "import os; print(os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd')))";
    let ran = enter(ENTERED[0], &["/usr/bin/python3", "-c", program]);
    // The last descriptor is the list's own.
    assert_eq!(text(&ran.stdout), "True ['0', '1', '2', '3']\n", "{}", text(&ran.stderr));
}

#[test]
fn task_is_not_started_if_its_firewall_cannot_be_installed() {
    let mut rig = Rig::new();
    (0..2).for_each(|number| rig.restart_agent_by(number, &WITHOUT_NFTABLES));
    (0..2).for_each(|number| rig.until_phase(number, "online"));
    let (code, _, errors) = rig.run(&["--nodes", "1", "--user", "root", "--", "/bin/true"]);
    assert_eq!(code, 0, "root is not filtered: {errors}");
    let (code, out, errors) = rig.run(&["--nodes", "1", "--", "/bin/echo", "started"]);
    assert!(
        code == 1 && errors.contains("cannot install the firewall meshd-task-users"),
        "{code} {errors}"
    );
    assert_eq!(out, "");
    rig.is_clean();
}
