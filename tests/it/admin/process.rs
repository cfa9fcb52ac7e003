//! meshd without root: what the kernel says of a real one that serves DHCP, TFTP and HTTP.

use crate::world::{World, copy_program, eventually, node::PxeNode};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
};

/// A user that every system has, and that owns nothing.
const USER: &str = "nobody";
/// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_NET_RAW.
const KEPT: &str = "0000000000003400";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A site whose meshd becomes another user. What that user reads lies where it may go.
fn prepared() -> World {
    let world = World::prepared("auto");
    let root = world.path("");
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let overlays = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
    run(Command::new("cp").arg("-r").arg(&overlays).arg(world.path("overlays")));
    run(Command::new("chmod").args(["-R", "a+rX"]).arg(&root));
    world.edit_site(&overlays.display().to_string(), "overlays");
    world.edit_site("socket = \"admin.sock\"", "socket = \"run/admin.sock\"");
    world.edit_site("[enroll]", &format!("[process]\nuser = \"{USER}\"\n[enroll]"));
    run(Command::new("chown").args(["-R", &format!("{USER}:")]).arg(world.path("state")));
    world
}

/// The value of a line of `/proc/.../status`.
fn line(status: &str, name: &str) -> String {
    let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{name} in {status}")).trim().to_owned()
}

/// Every thread of the process, for capabilities belong to threads.
fn assert_unprivileged(pid: u32, uid: &str) {
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        threads += 1;
        let ids: Vec<String> = line(&status, "Uid").split_whitespace().map(str::to_owned).collect();
        assert_eq!(ids, vec![uid; 4], "real, effective, saved and of files");
        for (set, wanted) in [
            ("CapEff", KEPT),
            ("CapPrm", KEPT),
            ("CapInh", NONE),
            ("CapAmb", NONE),
            ("CapBnd", NONE),
        ] {
            assert_eq!(line(&status, set), wanted, "{set}");
        }
        assert_eq!(line(&status, "NoNewPrivs"), "1");
    }
    assert!(threads > 1, "a runtime has threads");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
}

const NONE: &str = "0000000000000000";

/// Files 0600, folders 0700, and all of them the user's.
fn assert_private(folder: &Path, uid: &str) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let meta = entry.metadata().unwrap();
        let mode = meta.permissions().mode() & 0o777;
        let owner = meta.uid().to_string();
        // The authority's certificate is no secret: every node has it.
        let public = path.extension().is_some_and(|it| it == "pem");
        let bound = if meta.is_dir() {
            0o700
        } else if public {
            0o644
        } else {
            0o600
        };
        assert_eq!(
            (mode & !bound, owner.as_str()),
            (0, uid),
            "{} has mode {mode:o}",
            path.display()
        );
        if meta.is_dir() {
            assert_private(&path, uid);
        }
    }
}

#[test]
fn unprivileged_meshd_boots_a_machine_reloads_and_restarts() {
    let mut world = prepared();
    let uid = run(Command::new("id").args(["-u", USER]));
    for _ in 0..2 {
        world.start();
        assert_unprivileged(world.pid(), &uid);
        let machine = PxeNode::new(&world, 1);
        // UDP 67 and a packet socket, UDP 69, TCP 8080 and 8443, in this order.
        let overlay = machine.boot();
        let _agent = machine.start_agent(&overlay);
        world.wait_for_phase("online");
        world.edit_site("overlays = [\"motd\"]", "overlays = [\"motd\"] ");
        let reload = world.meshd(&["reload"]);
        assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
        assert!(world.stop().success());
    }
    for part in ["store", "ca"] {
        assert_private(&world.path("state").join(part), &uid);
    }
}

#[test]
fn meshd_drops_capabilities_that_its_ports_do_not_need() {
    let world = prepared();
    fs::create_dir_all(world.path("run")).unwrap();
    run(Command::new("chown").args([&format!("{USER}:")]).arg(world.path("run")));
    // Where that user may go.
    let program = world.path("meshd");
    copy_program(env!("CARGO_BIN_EXE_meshd"), &program);
    let mut command = Command::new("setpriv");
    let caps = "+net_bind_service,+net_raw,+net_admin,+sys_ptrace";
    command.args(["--reuid", USER, "--clear-groups", "--inh-caps", caps, "--ambient-caps", caps]);
    command.arg(&program).arg("--site").arg(&world.site).arg("serve");
    let mut child =
        world.central.spawn(command.stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
    let pid = child.id();
    let settled = eventually("it has settled", || {
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        if line(&status, "NoNewPrivs") == "1" { Ok(status) } else { Err(status) }
    });
    let _ = child.kill();
    let _ = child.wait();
    for (set, wanted) in [("CapEff", KEPT), ("CapPrm", KEPT), ("CapInh", NONE), ("CapAmb", NONE)] {
        assert_eq!(line(&settled, set), wanted, "{set}");
    }
}

#[test]
fn state_folder_of_another_user_is_refused_with_chown_hint() {
    let world = prepared();
    run(Command::new("chown").arg("root:").arg(world.path("state")));
    let refused = world.serve_and_fail();
    assert!(
        refused.contains("belongs to user ID 0") && refused.contains(&format!("chown -R {USER}:")),
        "{refused}"
    );
    world.edit_site(&format!("user = \"{USER}\""), "user = \"no-such-user\"");
    let refused = world.serve_and_fail();
    assert!(refused.contains("there is no user `no-such-user`"), "{refused}");
}

#[test]
fn meshd_as_root_logs_it_and_dumps_no_core() {
    let mut world = World::prepared("auto");
    world.start();
    assert!(world.log_text().contains("meshd runs as root"), "{}", world.log_text());
    let status = eventually("status", || {
        fs::read_to_string(format!("/proc/{}/status", world.pid()))
            .map_err(|error| error.to_string())
    });
    assert_eq!(
        (line(&status, "NoNewPrivs").as_str(), line(&status, "Uid").starts_with('0')),
        ("1", true)
    );
    let limits = fs::read_to_string(format!("/proc/{}/limits", world.pid())).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max core file size        0")), "{limits}");
    assert!(world.stop().success());
}

#[test]
fn full_output_gives_an_exit_code_and_no_panic() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let code = |program: &str, args: &[&str], out: bool, err: bool| {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if out {
            command.stdout(full());
        }
        if err {
            command.stderr(full());
        }
        command.status().unwrap().code()
    };
    let meshd = env!("CARGO_BIN_EXE_meshd");
    let agent = env!("CARGO_BIN_EXE_mesh-agent");
    for (program, args) in [
        (meshd, &["id", "--mac", "02:00:00:00:00:01"][..]),
        (meshd, &["--help"]),
        (meshd, &["--version"]),
        (agent, &["facts"]),
    ] {
        assert_eq!(code(program, args, true, true), Some(1), "{args:?}: the output is lost");
        assert_eq!(code(program, args, false, true), Some(0), "{args:?}: there is no message");
    }
    assert_eq!(code(meshd, &["node", "delete"], true, true), Some(2), "a usage error");
    assert_eq!(code(agent, &["run", "--config", "/nowhere"], true, true), Some(1));
}
