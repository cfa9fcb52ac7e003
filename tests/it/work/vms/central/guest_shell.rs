//! `meshd vm shell`: the real command in a terminal, the real agent with its private network, a
//! real QEMU, and OpenSSH on both sides. The guest is a network namespace with the address of the
//! VM, because the guest of QEMU is a boot sector.

use super::{Machine, done, prepared, reaches};
use crate::{
    work::{
        tasks::shell::Terminal,
        vms::guest::{Guest as BootSector, Node},
    },
    world::{World, eventually, node::PxeNode, program, stderr},
};
use meshd_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

const ADDRESS: &str = "172.30.0.9";
/// The machine of no other test: an agent that starts ends the shells of its node, and all tests
/// have the control groups of one system.
pub(super) const NUMBER: u8 = 41;
/// Seconds between requests to a silent guest. After three, it is lost; a login has as long for each
/// answer.
const ALIVE_INTERVAL: (&str, &str) = ("MESHD_GUEST_ALIVE", "10");
/// For the configuration of an SSH server that never answers the key of a user.
const HANGS_AT_THE_LOGIN: &str =
    "AuthorizedKeysCommand /usr/bin/sleep 90\nAuthorizedKeysCommandUser root\nLoginGraceTime 90\n";
/// The agent takes the network of a running system only: here it has `/etc`, `/run` and `/sys` of
/// its own. It has no KVM: that of a machine for tests exists and may not work.
const OWN_SYSTEM: &str = "set -e
if [ -e /dev/kvm ]; then
  touch \"$1/no-kvm\"
  mount --bind \"$1/no-kvm\" /dev/kvm
  mount -o remount,bind,ro /dev/kvm
fi
mount --bind \"$1/etc\" /etc
mount --bind \"$1/run\" /run
mkdir -p \"$1/cgroup\"
mount --rbind /sys/fs/cgroup \"$1/cgroup\"
mount -t sysfs none /sys
mount --rbind \"$1/cgroup\" /sys/fs/cgroup
shift
exec \"$@\"";

impl Machine<'_> {
    /// Starts the agent as that of a running system with a private network, with these variables.
    pub(super) fn start_with_network(&mut self, variables: &[(&str, &str)]) {
        // The users of SSH clients pass through it.
        fs::set_permissions(self.root.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let system = self.path("system");
        fs::create_dir_all(&system).unwrap();
        let copied = Command::new("cp").args(["-a", "/etc"]).arg(&system).status().unwrap();
        assert!(copied.success());
        let copied =
            Command::new("cp").arg("-a").arg(self.path("root/run")).arg(&system).status().unwrap();
        assert!(copied.success());
        fs::create_dir_all(system.join("etc/meshd")).unwrap();
        let network = r#"{"enabled": true, "pool": "172.30.0.0/16"}"#;
        fs::write(system.join("etc/meshd/nat.json"), network).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", OWN_SYSTEM, "sh"]);
        command.arg(&system).arg(program(env!("CARGO_BIN_EXE_mesh-agent"))).arg("run");
        command.arg("--config").arg(self.path("agent.json"));
        command.arg("--boot-file").arg(self.path("boot.json"));
        command.arg("--state-dir").arg(self.path("state")).arg("--vm-dir").arg(&self.vms);
        command.arg("--tasks-dir").arg(self.path("tasks")).args(["--reboot", "/bin/true"]);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(PxeNode::new(self.world, NUMBER).host().spawn(&mut command).unwrap());
    }
}

/// A site whose nodes may lack what a container lacks.
pub(super) fn world_with_network() -> World {
    let mut world = prepared("auto");
    world.edit_site(
        "checks = { kvm = \"warn\" }",
        "checks = { services = \"warn\", identity = \"warn\", clock = \"warn\", memory = \"warn\", network = \"warn\", \
         nat = \"warn\", firewall = \"warn\", kvm = \"warn\", iommu = \"warn\" }",
    );
    world.start();
    world
}

/// What answers at the address of the VM.
struct Guest {
    namespace: Namespace,
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Guest {
    fn new(world: &World) -> Self {
        let namespace = world.nodes.derived("guest");
        namespace.create().unwrap();
        let host = PxeNode::new(world, NUMBER).host();
        let name = namespace.name();
        host.ip(&["link", "add", "gport", "type", "veth", "peer", "name", "eth0", "netns", name])
            .unwrap();
        host.ip(&["link", "set", "gport", "up", "master", "mesh-nat0"]).unwrap();
        namespace.ip(&["address", "add", &format!("{ADDRESS}/24"), "dev", "eth0"]).unwrap();
        namespace.ip(&["link", "set", "eth0", "up"]).unwrap();
        let dir = tempfile::tempdir_in("/var/lib").unwrap();
        Guest { namespace, dir, server: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn serve(&mut self, command: &mut Command) {
        self.end();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.server = Some(self.namespace.spawn(command).unwrap());
    }

    /// Starts an SSH server with this host key and these keys of root.
    fn ssh(&mut self, host_key: &str, keys: &str) {
        self.ssh_with(host_key, keys, "");
    }

    /// Starts an SSH server with further lines of its configuration.
    fn ssh_with(&mut self, host_key: &str, keys: &str, lines: &str) {
        let key = self.path(host_key);
        if !key.exists() {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&key)
                .status();
            assert!(made.unwrap().success());
        }
        fs::write(self.path("keys"), keys).unwrap();
        let config = format!(
            "ListenAddress {ADDRESS}\nHostKey {}\nAuthorizedKeysFile {}\nUsePAM no\nStrictModes no\n\
             PidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n{lines}",
            key.display(),
            self.path("keys").display()
        );
        fs::write(self.path("config"), config).unwrap();
        let run = format!(
            "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f {}",
            self.path("config").display()
        );
        self.serve(Command::new("sh").args(["-c", &run]));
    }

    /// Accepts connections and says nothing.
    fn silent(&mut self) {
        let run = format!(
            "import socket\ns = socket.create_server((\"{ADDRESS}\", 22))\nheld = []\n\
             while True: held.append(s.accept())"
        );
        self.serve(Command::new("python3").args(["-c", &run]));
    }

    /// Kills the processes of the SSH server that serve logins, and their shells.
    fn kill_sessions(&self) {
        let server = self.server.as_ref().map(Child::id);
        for process in self.namespace.processes().into_iter().filter(|id| Some(*id) != server) {
            let process = i32::try_from(process).ok().and_then(Pid::from_raw).unwrap();
            let _ = kill_process(process, Signal::KILL);
        }
    }

    fn end(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            eprintln!("--- the guest\n{log}");
        }
        self.end();
        let _ = self.namespace.delete();
    }
}

/// Orders a VM that runs; gives its UUID.
fn create(world: &World, name: &str, digest: &str, more: &str) -> String {
    let file = world.path(&format!("{name}.toml"));
    let text = format!(
        "name = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\nallow_tcg = true\ngrace = \"1s\"\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n{more}"
    );
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let vm = world.json(&["vm", "create", "--start", "-o", "json", "-f", file]);
    vm["uuid"].as_str().unwrap().to_owned()
}

/// The public key in the cloud-init data of a VM, as cloud-init takes it.
fn seed_key(machine: &Machine<'_>, uuid: &str) -> String {
    let seed = fs::read(machine.vms.join(uuid).join("seed.iso")).unwrap();
    let text = String::from_utf8_lossy(&seed);
    let (_, keys) = text.split_once("\npublic-keys:\n  - \"").expect("the meta-data has keys");
    keys.split_once('"').unwrap().0.to_owned()
}

pub(super) fn open(world: &World, args: &[&str]) -> Terminal {
    Terminal::open(&mut world.cli(&[&["vm", "shell"], args].concat()), None)
}

/// Users of the processes with this text on their command line.
fn users(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let has_text = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.starts_with(b"/usr/bin/ssh\0") && String::from_utf8_lossy(&line).contains(text)
    };
    let found = entries.filter(has_text);
    found.filter_map(|entry| Some(fs::metadata(entry.path()).ok()?.uid())).collect()
}

/// The site forbids shells of guests: an open one ends, and another one is refused.
fn is_forbidden_by_the_site(world: &World) {
    let mut open_shell = open(world, &["web"]);
    open_shell.types("echo open $((2 + 3))\r");
    open_shell.shows("open 5");
    world.edit_site("[agent]\n", "[agent]\nguest_shells = false\n");
    done(world, &["reload"]);
    open_shell.shows("forbids shells of guests: [agent].guest_shells = false");
    assert_eq!(open_shell.exit_code(), 255);
    for vm in ["web", "nobody"] {
        let mut refused = open(world, &[vm]);
        refused.shows("the site file has [agent].guest_shells = false");
        refused.shows("hint: remove that key, then `meshd ");
        assert_eq!(refused.exit_code(), 1, "{vm}");
    }
    world.edit_site("guest_shells = false\n", "");
    done(world, &["reload"]);
}

/// The network of the guest goes, or its SSH server, while a shell is open.
fn is_named_when_the_guest_is_lost(world: &World, guest: &Guest) {
    let opened = |text: &str| {
        let mut shell = open(world, &["web"]);
        shell.types(&format!("echo {text} $((2 + 3))\r"));
        shell.shows(&format!("{text} 5"));
        shell
    };
    let port = |state| PxeNode::new(world, NUMBER).host().ip(&["link", "set", "gport", state]);
    let mut silent = opened("silent");
    port("down").unwrap();
    silent.shows("the guest has not answered for 30 s");
    silent.shows("hint: it hangs, or has lost its network");
    assert_eq!(silent.exit_code(), 255);
    port("up").unwrap();
    let mut cut = opened("cut");
    guest.kill_sessions();
    cut.shows("the guest ended the connection");
    assert_eq!(cut.exit_code(), 255);
}

/// The VM stops while a shell is open.
fn is_named_when_the_vm_stops(world: &World) {
    let mut shell = open(world, &["web"]);
    shell.types("echo open $((2 + 3))\r");
    shell.shows("open 5");
    done(world, &["vm", "stop", "web", "--wait"]);
    shell.shows("the VM web does not run any more");
    assert_eq!(shell.exit_code(), 255);
}

fn refuses_what_it_cannot_open(world: &World) {
    for (args, code, part) in [
        (&["bare"][..], 1, "no cloud-init data"),
        (&["nobody"], 1, "nobody"),
        (&["--", "-oProxyCommand=x"], 1, "-oProxyCommand=x"),
        (&["web", "--user", "$(id)"], 2, "user name"),
        (&["web", "--user=-oProxyCommand=x"], 2, "user name"),
    ] {
        let mut refused = open(world, args);
        refused.shows(part);
        assert_eq!(refused.exit_code(), code, "{args:?}");
    }
    let without = world.meshd(&["vm", "shell", "web"]);
    assert!(stderr(&without).contains("needs a terminal"), "{}", stderr(&without));
}

#[test]
fn shell_of_a_guest_uses_the_key_of_its_node_and_names_what_is_wrong() {
    let world = world_with_network();
    let sectors = Node::new();
    let digest = super::add(&world, &sectors, BootSector::Deaf, "deaf");
    let mut machine = Machine::new(&world, &PxeNode::new(&world, NUMBER).boot());
    machine.start_with_network(&[ALIVE_INTERVAL]);
    world.wait_for_phase("online");
    let nic = format!("[[nic]]\nbridge = \"mesh-nat0\"\naddress = \"{ADDRESS}\"\n");
    let seed = "[cloud_init]\nuser_data = \"#cloud-config\\n\"\n";
    let uuid = create(&world, "web", &digest, &format!("{nic}{seed}"));
    create(&world, "bare", &digest, "");
    let unreachable = create(&world, "alone", &digest, seed);
    for name in ["web", "bare", "alone"] {
        reaches(&machine, name, "running");
    }
    let mut guest = Guest::new(&world);
    let key = seed_key(&machine, &uuid);
    assert!(key.starts_with("ssh-ed25519 ") && key != seed_key(&machine, &unreachable), "{key}");
    guest.ssh("first", &key);

    let mut shell = open(&world, &["web", "--reason", "a look"]);
    shell.types(
        "stty -echo; echo user $(id -un) $((6 * 7)); stty size; echo $TERM; echo $SSH_CONNECTION\r",
    );
    for part in ["user root 42", "30 90", "xterm-256color", ADDRESS] {
        shell.shows(part);
    }
    // The client reads what a guest sends: it is not root, and the key is its own alone.
    let relay = fs::metadata(machine.vms.join(&uuid).join("relay/key")).unwrap();
    assert_eq!((relay.mode() & 0o777, relay.uid() == 0), (0o600, false));
    assert_eq!(users(&uuid), [relay.uid()]);
    shell.types("exit 7\r");
    assert_eq!(shell.exit_code(), 7);
    eventually("begin and end are recorded", || {
        let events = world.events("vm_shell");
        let has = |text: &str| {
            events.iter().any(|event| event["detail"].as_str().unwrap().contains(text))
        };
        let is_complete = has("web") && has("opens a shell as root") && has("exit code 7");
        if is_complete { Ok(()) } else { Err(format!("{events:?}")) }
    });
    let private = b"OPENSSH PRIVATE KEY";
    assert!(!world.state_bytes().windows(private.len()).any(|part| part == private));

    // A flood is held up, not stored; the user leaves in its midst.
    let mut flood = open(&world, &["web"]);
    flood.types("echo begun $((4 + 4)); yes meshd\r");
    flood.shows("begun 8\r\nmeshd\r\nmeshd");
    flood.types("\u{1d}");
    assert_eq!(flood.exit_code(), 0);
    eventually("its client has ended", || {
        let found = users(&uuid);
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });

    is_forbidden_by_the_site(&world);
    is_named_when_the_guest_is_lost(&world, &guest);

    let fails = |args: &[&str], parts: &[&str]| {
        let mut shell = open(&world, args);
        for part in parts {
            shell.shows(part);
        }
        assert_eq!(shell.exit_code(), 255, "{args:?}");
    };
    guest.ssh("second", &key);
    fails(&["web"], &["not the one that it showed first", "--forget-host-key"]);
    let mut trusting = open(&world, &["web", "--forget-host-key"]);
    trusting.types("exit 3\r");
    assert_eq!(trusting.exit_code(), 3);
    guest.ssh("second", "");
    fails(
        &["web", "--user", "root"],
        &["refuses the key of this node for the user root", "--user"],
    );
    guest.ssh_with("second", "", HANGS_AT_THE_LOGIN);
    fails(
        &["web"],
        &["did not complete the login of root: it sent nothing for 30 s", "vm console"],
    );
    eventually("its client has ended", || {
        let found = users(&uuid);
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });
    guest.silent();
    fails(&["web"], &["the SSH server of the guest does not answer", "vm console"]);
    // Leaving does not wait for a guest without a server.
    guest.end();
    let mut waiting = open(&world, &["web"]);
    waiting.shows("waiting for the SSH server of the guest at 172.30.0.9:22");
    waiting.types("\u{1d}");
    assert_eq!(waiting.exit_code(), 0);
    fails(&["alone"], &["no address in the private network", "mesh-nat0"]);

    refuses_what_it_cannot_open(&world);
    guest.ssh("second", &key);
    is_named_when_the_vm_stops(&world);
    fails(&["web"], &["the VM web does not run", "vm start web"]);
    done(&world, &["vm", "delete", "web", "--yes", "--wait"]);
    assert!(!machine.vms.join(&uuid).exists(), "the key goes with the VM");
}
