//! The real mesh-init, in a root as Alpine's initramfs leaves it. Without QEMU it has neither loop
//! devices nor a kernel of its own: `nodes/boot_log/netconsole` boots it.

use crate::world::{
    World, eventually,
    node::{PxeNode, Script},
    program::Program,
    unpack,
};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The static program of nodes.
pub fn stage1() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agent/x86_64/stage1")
}

/// A world whose overlays have the real mesh-init.
pub fn world() -> World {
    let world = World::prepared("auto");
    fs::copy(stage1(), world.path("stage1")).expect("make agent");
    world
}

/// Unpacks the overlay of a boot over accounts and packages, as Alpine's initramfs does. Returns the
/// kernel's command line.
pub fn unpack_root(machine: &PxeNode<'_>, script: &Script, root: &Path) -> String {
    let overlay = machine.get(&script.overlay().unwrap_or_else(|| panic!("{}", script.0))).unwrap();
    for folder in ["etc", "proc", "sys", "dev", "tmp", "usr/lib/apk/db"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root::0:0:root:/root:/bin/sh\n").unwrap();
    fs::write(root.join("etc/shadow"), "root:$6$a:1:0:::::\n").unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-xzpf", "-", "-C"]).arg(root).stdin(Stdio::piped());
    let mut tar = tar.spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&unpack::apkovl(&overlay.body)).unwrap();
    assert!(tar.wait().unwrap().success());
    let packages = fs::read_to_string(root.join("etc/meshd/packages")).unwrap();
    let installed: String = packages.lines().map(|name| format!("P:{name}\nV:1\n\n")).collect();
    fs::write(root.join(DATABASE), installed).unwrap();
    let kernel = script.0.lines().find(|line| line.starts_with("kernel ")).unwrap();
    kernel.to_owned()
}

const DATABASE: &str = "usr/lib/apk/db/installed";

/// A root with the NIC and the command line of a booting machine.
struct Boot {
    root: tempfile::TempDir,
    session: String,
}

impl Boot {
    fn new(machine: &PxeNode<'_>) -> Self {
        let script = machine.power_on().unwrap();
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let line = unpack_root(machine, &script, root.path());
        let boot = Boot { root, session: String::new() };
        let part = fs::read(boot.path("etc/meshd/boot.json")).unwrap();
        let part: serde_json::Value = serde_json::from_slice(&part).unwrap();
        let session = part["session"].as_str().unwrap().to_owned();
        fs::write(boot.path("proc/cmdline"), line).unwrap();
        let nic = boot.path("sys/class/net/eth7");
        fs::create_dir_all(&nic).unwrap();
        fs::write(nic.join("type"), "1\n").unwrap();
        fs::write(nic.join("address"), format!("{}\n", machine.mac)).unwrap();
        Boot { session, ..boot }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn append(&self, path: &str, text: &str) {
        let mut file = fs::OpenOptions::new().append(true).open(self.path(path)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Runs mesh-init as the first process of its kernel. Returns why it fails.
    fn run(&self, machine: &PxeNode<'_>) -> String {
        let root = self.root.path().to_str().unwrap();
        let args = ["--pid", "--fork", "--kill-child", "chroot", root, "/sbin/mesh-init"];
        let program = Program::start(machine.world, &machine.host(), "unshare", &args);
        program.says("mesh-init: FAILED: ", 1);
        let log = eventually("mesh-init has ended", || {
            let log = program.log_text();
            if log.contains("mesh-init: report") { Ok(log) } else { Err(log) }
        });
        let (_, reason) = log.split_once("mesh-init: FAILED: ").unwrap();
        assert!(log.contains("mesh-init: reported: status 200"), "{log}");
        reason.lines().next().unwrap().to_owned()
    }
}

/// What the machine did, and the beginning of the reason.
type Case = (fn(&Boot), &'static str);

#[test]
fn mesh_init_refuses_what_was_not_rendered_and_reports_the_reason() {
    let mut world = world();
    world.start();
    let cases: [Case; 8] = [
        (|boot| boot.append("etc/issue", "x"), "check /etc/issue of the overlay: it is not what"),
        (
            // With characters that a URL does not hold.
            |boot| {
                let digest = "0".repeat(64);
                let line = format!("{digest}  /etc/a&b = 100 % \u{fc}\n");
                boot.append("etc/meshd/manifest.sha256", &line);
            },
            "check /etc/a&b = 100 % \u{fc} of the overlay: No such file or directory",
        ),
        (
            |boot| boot.append("usr/bin/mesh-agent", "x"),
            "check /usr/bin/mesh-agent of the overlay: it is not what was rendered",
        ),
        (
            |boot| fs::write(boot.path(DATABASE), "P:openrc\nf:f\n").unwrap(),
            "packages not installed: alpine-base openrc(incomplete)",
        ),
        (|boot| fs::remove_file(boot.path(DATABASE)).unwrap(), "no package was installed"),
        (
            |boot| fs::write(boot.path("etc/shadow"), "bin:!::0:::::\n").unwrap(),
            "lock the root account: /etc/shadow has no root",
        ),
        (
            |boot| fs::remove_dir_all(boot.path("sys/class")).unwrap(),
            "no interface has the address that BOOTIF= names",
        ),
        // It is as rendered, and has fetched the modloop.
        (|_| {}, "attach the squashfs to a loop device: "),
    ];
    // Three failed boots of one machine are a loop.
    for (number, (change, reason)) in (1..).zip(cases) {
        let machine = PxeNode::new(&world, number);
        let boot = Boot::new(&machine);
        change(&boot);
        let found = boot.run(&machine);
        assert!(found.starts_with(reason), "{found}");
        let events = world.events("boot_failed");
        let event = events.iter().find(|event| event["session"] == boot.session.as_str());
        assert_eq!(event.expect(&found)["detail"], found.as_str());
        if reason.starts_with("attach") {
            let read = |path: &str| fs::read_to_string(boot.path(path)).unwrap();
            assert_eq!(read("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
            assert_eq!(read("etc/shadow"), "root:*:1:0:::::\n");
            assert!(read("etc/network/interfaces.d/boot").starts_with("auto eth7\n"));
            assert_eq!(fs::read(boot.path(".modloop.img")).unwrap(), [4; 50_000]);
        }
    }
}
