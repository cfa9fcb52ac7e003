//! A real central node, a real agent and a real QEMU: from `meshd volume add` to a console, through
//! the deaths of agent and QEMU.

mod debian_guest;
mod guest_shell;

use super::{
    console::Console,
    guest::{Guest, HELLO, Node},
};
use crate::world::{
    World, eventually,
    node::{Overlay, PxeNode},
    program, stderr,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::{fs::symlink, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

/// A node whose agent may be killed and started anew.
pub struct Machine<'a> {
    world: &'a World,
    root: tempfile::TempDir,
    /// Where its machines and volumes lie.
    pub(super) vms: PathBuf,
    agent: Option<Child>,
}

impl<'a> Machine<'a> {
    /// What the overlay brought, and this machine's programs, processors and memory; no KVM.
    pub fn new(world: &'a World, overlay: &Overlay) -> Self {
        // Not below /tmp: a VM has one of its own.
        let root = tempfile::tempdir_in("/var/lib").unwrap();
        let machine = Machine { world, vms: root.path().join("vms"), root, agent: None };
        let started = machine.path("root/run/openrc/started");
        fs::create_dir_all(&started).unwrap();
        fs::create_dir_all(machine.path("root/etc/meshd")).unwrap();
        for folder in ["proc", "usr"] {
            symlink(format!("/{folder}"), machine.path("root").join(folder)).unwrap();
        }
        for file in ["boot.json", "agent.json"] {
            fs::write(machine.path(file), &overlay[&format!("etc/meshd/{file}")].1).unwrap();
        }
        let config: Value =
            serde_json::from_slice(&fs::read(machine.path("agent.json")).unwrap()).unwrap();
        for service in config["services"].as_array().into_iter().flatten().filter_map(Value::as_str)
        {
            symlink("/dev/null", started.join(service)).unwrap();
        }
        machine
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn start(&mut self) {
        self.start_on(1);
    }

    /// Starts the agent on the machine with this number.
    pub fn start_on(&mut self, number: u8) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(program(env!("CARGO_BIN_EXE_mesh-agent")));
        command
            .arg("run")
            .arg("--config")
            .arg(self.path("agent.json"))
            .arg("--boot-file")
            .arg(self.path("boot.json"));
        command.arg("--state-dir").arg(self.path("state")).arg("--root").arg(self.path("root"));
        command.arg("--vm-dir").arg(&self.vms).args(["--reboot", "/bin/true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(PxeNode::new(self.world, number).host().spawn(&mut command).unwrap());
    }

    /// Process ID of its agent.
    pub fn id(&self) -> i32 {
        self.agent.as_ref().unwrap().id().try_into().unwrap()
    }

    /// Waits for the end of its agent, which something else kills.
    pub fn wait_for_end(&mut self) {
        self.agent.take().unwrap().wait().unwrap();
    }

    pub(super) fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn qemu(&self, uuid: &str) -> i32 {
        let pid = fs::read_to_string(self.vms.join(uuid).join("qemu.pid")).unwrap();
        pid.trim().parse().unwrap()
    }

    pub(super) fn volumes(&self) -> usize {
        fs::read_dir(self.vms.join("volumes")).map_or(0, Iterator::count)
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
        if self.agent.is_some() {
            self.kill();
        }
        // On every command line: where its machines lie, or the agent's own files.
        let ours = [self.root.path(), &self.vms].map(|path| path.display().to_string());
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let line = String::from_utf8_lossy(&line);
            if let (true, Some(pid)) = (ours.iter().any(|own| line.contains(own)), pid) {
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// A site whose nodes run VMs, by emulation.
pub fn world() -> World {
    let mut world = prepared("auto");
    world.start();
    world
}

/// The same with this `[enroll].policy`, before it runs.
pub fn prepared(policy: &str) -> World {
    let world = World::prepared(policy);
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
    let ours = world.path("overlays");
    fs::create_dir_all(&ours).unwrap();
    for name in ["base", "agent", "motd", "kvm-host"] {
        assert!(
            Command::new("cp")
                .arg("-r")
                .arg(theirs.join(name))
                .arg(&ours)
                .status()
                .unwrap()
                .success()
        );
    }
    // Its packages are not in the image of this world.
    let manifest = ours.join("kvm-host/overlay.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("packages = "))
        .map(|line| format!("{line}\n"));
    fs::write(manifest, lines.collect::<String>()).unwrap();
    world.edit_site(
        &format!("overlays_dir = \"{}\"", theirs.display()),
        "overlays_dir = \"overlays\"",
    );
    world.edit_site(
        "overlays = [\"base\", \"agent\"]",
        "overlays = [\"base\", \"agent\", \"kvm-host\"]\nchecks = { kvm = \"warn\" }",
    );
    world
}

pub fn done(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn refused(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(!output.status.success(), "{args:?}");
    stderr(&output)
}

/// Writes a vm.toml.
pub fn vm_toml(world: &World, name: &str, digest: &str) -> String {
    let text = format!(
        "name = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\nallow_tcg = true\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    let file = world.path(&format!("{name}.toml"));
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Orders one to run; gives its UUID.
pub(super) fn create(world: &World, name: &str, digest: &str) -> String {
    let file = vm_toml(world, name, digest);
    let vm = world.json(&["vm", "create", "--start", "-o", "json", "-f", &file]);
    vm["uuid"].as_str().unwrap().to_owned()
}

pub fn reaches(machine: &Machine<'_>, name: &str, state: &str) -> Value {
    eventually(&format!("{name} is {state}"), || {
        let vm = machine.world.json(&["vm", "show", name, "-o", "json"]);
        if vm["state"] == state { Ok(vm) } else { Err(format!("{vm}\n{}", machine.log())) }
    })
}

pub fn add(world: &World, node: &Node, guest: Guest, name: &str) -> String {
    let digest = node.image(guest).to_string();
    let file = node.path().join("images").join(&digest);
    let printed = done(world, &["volume", "add", file.to_str().unwrap(), "--name", name]);
    assert_eq!(printed.trim(), digest);
    digest
}

/// Somebody at a console.
fn sits(world: &World, name: &str) {
    let mut console = Console::open(world, name);
    console.shows(HELLO);
    console.types(b"H");
    // The guest says the letter that follows.
    console.shows(&format!("{HELLO}I"));
    console.leave();
}

#[test]
fn vm_is_fetched_run_attached_adopted_and_released() {
    let world = world();
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Echo, "echo");
    let backed = guests.path().join("backed.qcow2");
    let make = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"];
    let below = guests.path().join("images").join(&digest);
    assert!(
        Command::new("qemu-img").args(make).arg(&below).arg(&backed).status().unwrap().success()
    );
    assert!(refused(&world, &["volume", "add", backed.to_str().unwrap()]).contains("backing file"));

    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    let uuid = create(&world, "one", &digest);
    reaches(&machine, "one", "running");
    eventually("its words are kept", || {
        let log_text = done(&world, &["vm", "logs", "one"]);
        if log_text.contains(HELLO) { Ok(()) } else { Err(log_text) }
    });
    sits(&world, "one");
    assert_eq!(
        world.events("vm_console").len(),
        1,
        "who sat down is written down, who only looked is not"
    );
    assert!(
        refused(&world, &["volume", "remove", "echo", "--yes"]).contains("one"),
        "it is in use"
    );

    // The agent dies; the machine does not, and the next agent has it.
    let qemu = machine.qemu(&uuid);
    machine.kill();
    machine.start();
    eventually("it is taken over", || {
        if machine.log().contains("took over a running VM") { Ok(()) } else { Err(machine.log()) }
    });
    eventually("it is linked again", || {
        let answer = world.meshd(&["vm", "logs", "one"]);
        if answer.status.success() { Ok(()) } else { Err(stderr(&answer)) }
    });
    assert_eq!(
        (reaches(&machine, "one", "running")["restarts"].clone(), machine.qemu(&uuid)),
        (0.into(), qemu)
    );
    assert!(
        done(&world, &["vm", "logs", "one"]).contains(&format!("{HELLO}I")),
        "what was said before is kept"
    );

    let pid = rustix::process::Pid::from_raw(qemu).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let failed = reaches(&machine, "one", "failed");
    assert_eq!(failed["failure"]["kind"], "crashed", "{failed}");

    done(&world, &["vm", "delete", "one", "--yes"]);
    eventually("nothing of it is left", || {
        let all = world.json(&["vm", "list", "-o", "json"]);
        if all == serde_json::json!([]) && machine.volumes() == 0 {
            Ok(())
        } else {
            Err(all.to_string())
        }
    });
    assert!(!machine.path("vms").join(&uuid).exists());
    done(&world, &["volume", "remove", "echo", "--yes"]);
    assert_eq!(world.json(&["volume", "list", "-o", "json"]), serde_json::json!([]));
}

/// meshd on a site that its nodes borrow, until it is killed or dropped.
struct Daemon(Child);

impl Daemon {
    fn start(world: &World, environment: &[(&str, String)]) -> Self {
        let daemon = Daemon(world.spawn(environment));
        eventually("meshd serves", || {
            let answer = world.meshd(&["node", "list"]);
            if answer.status.success() { Ok(()) } else { Err(stderr(&answer)) }
        });
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn stored_order_reaches_its_node_after_kill_9_before_it_was_sent() {
    let world = prepared("auto");
    let mut daemon = Daemon::start(&world, &[("MESHD_FAIL", "vm-created".to_owned())]);
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Deaf, "deaf");
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    let file = vm_toml(&world, "one", &digest);
    refused(&world, &["vm", "create", "--start", "-f", &file]);
    assert_eq!(daemon.0.wait().unwrap().signal(), Some(9));

    let daemon = Daemon::start(&world, &[]);
    let vm = reaches(&machine, "one", "running");
    let uuid = vm["uuid"].as_str().unwrap();
    let qemu = machine.qemu(uuid);
    // The next link counts generations anew: the agent takes smaller ones than before.
    drop(daemon);
    let _daemon = Daemon::start(&world, &[]);
    world.wait_for_phase("online");
    assert_eq!(machine.qemu(uuid), qemu);
    done(&world, &["vm", "delete", "one", "--yes"]);
    eventually("the agent takes the order", || {
        let all = world.json(&["vm", "list", "-o", "json"]);
        if all == serde_json::json!([]) { Ok(()) } else { Err(all.to_string()) }
    });
}

#[test]
fn node_show_reports_memory_and_storage_of_last_heartbeat() {
    let world = world();
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let id = nodes[0]["id"].as_str().unwrap();
    let node = eventually("a heartbeat came", || {
        let node = world.json(&["node", "show", id, "-o", "json"]);
        if node["heartbeat"].is_object() { Ok(node) } else { Err(node.to_string()) }
    });
    let beat = &node["heartbeat"];
    assert!(
        beat["memory_available_kib"].as_u64() > Some(0)
            && beat["storage_free_bytes"].as_u64() > Some(0),
        "{beat}"
    );
    let shown = done(&world, &["node", "show", id]);
    assert!(shown.contains("memory available") && shown.contains("storage free"), "{shown}");
}

#[test]
fn volume_with_wrong_digest_is_never_run() {
    let world = world();
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Deaf, "deaf");
    let file = world.path("state/blobs/volumes").join(&digest);
    let sound = fs::read(&file).unwrap();
    let mut other = sound.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(&file, &other).unwrap();
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    // What an agent that died left of it is no harm either.
    fs::create_dir_all(machine.path("vms/volumes")).unwrap();
    fs::write(machine.path("vms/volumes").join(format!("{digest}.part")), "junk").unwrap();
    machine.start();
    world.wait_for_phase("online");
    create(&world, "one", &digest);
    let failed = reaches(&machine, "one", "unplaced");
    let detail = failed["obstacle"].as_str().unwrap();
    assert!(detail.contains("volume_differs") && detail.contains("root"), "{failed}");
    assert_eq!(machine.volumes(), 0, "nothing half is left");
    // Put right, it runs by the next order; one that is half there goes on.
    fs::write(&file, &sound).unwrap();
    fs::write(
        machine.path("vms/volumes").join(format!("{digest}.part")),
        &sound[..sound.len() / 2],
    )
    .unwrap();
    done(&world, &["vm", "start", "one"]);
    reaches(&machine, "one", "running");
    assert!(machine.log().contains("resuming the fetch"), "{}", machine.log());
    // One that the central node has not is refused before anything begins.
    let gone = "f".repeat(64);
    let file = vm_toml(&world, "two", &gone);
    let log_text = refused(&world, &["vm", "create", "--start", "-f", &file]);
    assert!(log_text.contains(&gone) && log_text.contains("volume add FILE"), "{log_text}");
}
