//! A whole site in two network namespaces: the real `meshd serve` as a process on its real ports on
//! one side of a wire, and a fake PXE node that walks the chain over real sockets on the other.
//! Everything goes when it is dropped, also in a panic.

pub mod dhcp;
pub mod http;
mod images;
pub mod node;
pub mod program;
pub mod single_orders;
pub mod tftp;
pub mod unpack;

use meshd_image::catalog::agent::sample_agent;
use meshd_lab::Namespace;
use meshd_types::MacAddr;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs, io,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The longest that anything here may take. Far more than it needs, for machines that do other
/// things too: a test that waits so long has failed.
pub const DEADLINE: Duration = Duration::from_secs(300);
/// Pauses between two looks at something that is waited for.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(100);
/// Where the central node is.
pub const CENTRAL: &str = "10.77.0.1";

/// Receives a datagram. The kernel does not restart a read with a timeout after a signal, and each
/// child of a test that ends sends one.
pub fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns the standard error of a command.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes a program that can be executed at once. A child writes it: while this process has the
/// file open, another test may fork, and the kernel refuses to execute the file (ETXTBSY) until
/// that child has closed its copy of the descriptor.
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut install.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success(), "cannot write {}", path.display());
}

/// Copies a program, in the same way as [`write_program`].
pub fn copy_program(from: &str, to: &Path) {
    let copied = Command::new("install").args(["-m", "755", from]).arg(to).status().unwrap();
    assert!(copied.success(), "cannot copy {from} to {}", to.display());
}

/// Waits until something holds, by looking at it; panics with what was last seen.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    eventually_within(DEADLINE, what, look)
}

/// The same with another deadline, for what takes minutes on any machine.
pub fn eventually_within<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let begun = Instant::now();
    loop {
        let seen = match look() {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        let waited = begun.elapsed();
        assert!(waited < limit, "{what}: not within {limit:?}; last seen: {seen}");
        // A look often starts a program: one that waits long leaves the processors to the others.
        thread::park_timeout((waited / 10).clamp(LEAST_PAUSE, MOST_PAUSE));
    }
}

/// A program of this workspace, or the one of the same name in the folder `MESHD_TEST_PROGRAMS`:
/// another version, see [`crate::site::compat`].
pub fn program(built: &str) -> PathBuf {
    let other = std::env::var_os("MESHD_TEST_PROGRAMS");
    let other =
        other.and_then(|folder| Some(Path::new(&folder).join(Path::new(built).file_name()?)));
    other.filter(|other| other.exists()).unwrap_or_else(|| built.into())
}

/// Variable with the kind of the image that the nodes of all worlds boot: `root`, or Alpine.
pub const IMAGE_KIND: &str = "MESHD_TEST_IMAGE_KIND";

/// Whether the nodes of all worlds boot an image of kind `root`.
pub fn boots_root_images() -> bool {
    std::env::var(IMAGE_KIND).is_ok_and(|kind| kind == "root")
}

/// One site and one wire.
pub struct World {
    dir: TempDir,
    /// What meshd runs on.
    pub site: PathBuf,
    pub central: Namespace,
    pub nodes: Namespace,
    /// A namespace for each machine, with a network card of its own.
    hosts: Mutex<BTreeMap<MacAddr, Namespace>>,
    daemon: Option<Child>,
    /// Log lines are JSON.
    pub log_json: bool,
}

impl World {
    /// A site that runs, with this `[enroll].policy`.
    pub fn new(policy: &str) -> Self {
        let mut world = Self::prepared(policy);
        world.start();
        world
    }

    /// A site that does not run yet.
    pub fn prepared(policy: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().unwrap();
        let name = format!("world {} {}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let central = Namespace::of(Path::new("ip"), Path::new(&name));
        let nodes = central.derived("n");
        let site = dir.path().join("site.toml");
        let world = World {
            dir,
            site,
            central,
            nodes,
            hosts: Mutex::default(),
            daemon: None,
            log_json: false,
        };
        // A run that was killed had the same process ID.
        for left in world.central.all_derived().iter().chain([&world.central]) {
            left.delete().unwrap();
        }
        world.central.create().unwrap();
        world.nodes.create().unwrap();
        world
            .central
            .ip(&[
                "link",
                "add",
                "br0",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                world.nodes.name(),
            ])
            .unwrap();
        world.central.ip(&["address", "add", &format!("{CENTRAL}/24"), "dev", "br0"]).unwrap();
        world.central.ip(&["link", "set", "br0", "up"]).unwrap();
        world.nodes.ip(&["link", "set", "eth0", "up"]).unwrap();
        world.write_site(policy);
        world.write_image();
        if boots_root_images() {
            world.write_root_image("root");
            world.edit_site("image = \"small\"", "image = \"root\"\nwritable = \"64M\"");
        }
        world
    }

    /// A machine on the wire: a namespace whose `eth0` has this MAC address. It is made when it is
    /// first asked for.
    pub fn host(&self, mac: MacAddr) -> Namespace {
        self.host_on(mac, "eth0")
    }

    /// The same on another wire, which `uplink` in the nodes' namespace leads to.
    pub fn host_on(&self, mac: MacAddr, uplink: &str) -> Namespace {
        let mut hosts = self.hosts.lock().unwrap();
        let made = hosts.entry(mac).or_insert_with(|| {
            let text = mac.to_string();
            let host = self.nodes.derived(&text.replace(':', ""));
            host.create().unwrap();
            // The neighbours of all network namespaces share one table of 1,024 places for IPv6,
            // and each card sends to several multicast groups.
            let without = || fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            host.inside(without).unwrap().unwrap();
            let card = [
                "link",
                "add",
                "link",
                uplink,
                "name",
                "card",
                "address",
                &text,
                "netns",
                host.name(),
            ];
            self.nodes.ip(&[&card[..], &["type", "macvlan", "mode", "bridge"]].concat()).unwrap();
            host.ip(&["link", "set", "card", "name", "eth0", "up"]).unwrap();
            host
        });
        made.clone()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_site(&self, policy: &str) {
        let overlays = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
        let text = format!(
            r#"
[site]
name = "world"
state_dir = "state"
images_dir = "images"
overlays_dir = "{overlays}"
[net]
interface = "br0"
[dhcp]
mode = "authoritative"
range = "10.77.0.100-10.77.0.110"
lease = "1h"
[http]
port = 8080
[agent]
port = 8443
heartbeat = "1s"
offline_after = "20s"
binary = "agent"
[admin]
socket = "admin.sock"
[enroll]
policy = "{policy}"
token_ttl = "15m"
[boot]
loaders_dir = "loaders"
[defaults]
profile = "discovery"
[profiles.discovery]
image = "small"
overlays = ["base", "agent"]
# The disk of the machine that runs the tests may be nearly full.
thresholds = {{ store_warn_gb = 2, store_fail_gb = 1 }}
[profiles.compute]
extends = "discovery"
overlays = ["motd"]
"#,
            overlays = overlays.display()
        );
        fs::write(self.path("site.toml"), text).unwrap();
        for (program, rest) in [("agent", b"".as_slice()), ("stage1", b"stage1")] {
            let bytes = sample_agent(meshd_types::Architecture::X86_64, rest);
            fs::write(self.path(program), bytes).unwrap();
        }
        fs::create_dir_all(self.path("loaders")).unwrap();
        for (loader, size) in
            [("undionly.kpxe", 70_001), ("snponly.efi", 150_003), ("ipxe.efi", 99)]
        {
            fs::write(self.path("loaders").join(loader), vec![7u8; size]).unwrap();
        }
    }

    fn log(&self) -> PathBuf {
        self.path("meshd.log")
    }

    fn serve(&self) -> Command {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
        command.arg("--site").arg(&self.site).arg("serve");
        if self.log_json {
            command.args(["--log-format", "json"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Starts meshd and waits until it answers.
    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// Starts meshd with these variables in its environment.
    pub fn start_with(&mut self, environment: &[(&str, String)]) {
        self.daemon = Some(self.spawn(environment));
        eventually("meshd serves", || {
            let status = self.daemon.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "meshd ended: {status:?}\n{}", self.log_text());
            let answer = self.meshd(&["node", "list", "-o", "json"]);
            if answer.status.success() { Ok(()) } else { Err(stderr(&answer)) }
        });
    }

    /// Starts meshd and does not wait for it; whoever asked ends it.
    pub fn spawn(&self, environment: &[(&str, String)]) -> Child {
        let mut serve = self.serve();
        self.central
            .spawn(serve.envs(environment.iter().map(|(name, value)| (name, value))))
            .unwrap()
    }

    /// Runs `meshd serve` on this site until it ends by itself, which it must.
    pub fn serve_and_fail(&self) -> String {
        let mut child = self.central.spawn(self.serve().stderr(Stdio::piped())).unwrap();
        eventually("meshd refuses to run", || {
            child.try_wait().unwrap().ok_or("it runs".to_owned())
        });
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        stderr(&output)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// SIGTERM; gives the exit status.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let mut daemon = self.daemon.take().expect("meshd runs");
        let pid = rustix::process::Pid::from_child(&daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        eventually("meshd stops", || daemon.try_wait().unwrap().ok_or("it runs".to_owned()))
    }

    /// The process that serves.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("meshd runs").id()
    }

    /// Replaces a part of the site file, in one step: meshd may look at any moment.
    pub fn edit_site(&self, part: &str, with: &str) {
        let text = fs::read_to_string(self.path("site.toml")).unwrap();
        assert!(text.contains(part), "{part}");
        fs::write(self.path("site.edited"), text.replacen(part, with, 1)).unwrap();
        fs::rename(self.path("site.edited"), self.path("site.toml")).unwrap();
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Runs a verb of the command line.
    pub fn meshd(&self, args: &[&str]) -> Output {
        self.cli(args).stdin(Stdio::null()).output().unwrap()
    }

    /// A verb of the command line, to be run.
    pub fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
        command.arg("--site").arg(&self.site).args(args);
        command
    }

    /// Runs a verb that has to succeed and print JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.meshd(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Events of a kind.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let output = self.meshd(&["events", "--limit", "10000", "-o", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["kind"] == kind).collect()
    }

    /// The one node that there is.
    pub fn node(&self) -> Value {
        let nodes = self.json(&["node", "list", "-o", "json"]);
        let nodes = nodes.as_array().unwrap();
        assert_eq!(nodes.len(), 1, "{nodes:?}");
        nodes[0].clone()
    }

    /// Waits until the one node is in a phase.
    pub fn wait_for_phase(&self, phase: &str) -> Value {
        eventually(phase, || {
            let nodes = self.json(&["node", "list", "-o", "json"]);
            match nodes.as_array().unwrap().as_slice() {
                [node] if node["phase"] == phase => Ok(node.clone()),
                // A node with a ticket begins when its agent asks.
                [] | [_] => Err(format!("{nodes}\n{}", self.log_text())),
                _ => panic!("one node: {nodes}"),
            }
        })
    }

    /// Everything that is on the disk of the central node, for secrets that must not be there.
    pub fn state_bytes(&self) -> Vec<u8> {
        let mut all = fs::read(self.log()).unwrap_or_default();
        let mut folders = vec![self.path("state/store")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    all.extend(fs::read(entry.path()).unwrap_or_default());
                }
            }
        }
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- meshd's log\n{}", self.log_text());
        }
        self.kill();
        for host in self.hosts.lock().unwrap().values() {
            let _ = host.delete();
        }
        let _ = self.nodes.delete();
        let _ = self.central.delete();
    }
}
