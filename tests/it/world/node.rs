//! A machine that boots: every step that firmware, iPXE, Alpine and mesh-init take, and then the
//! real mesh-agent.

use super::{
    CENTRAL, World,
    dhcp::{self, As, Granted},
    eventually, http, program, tftp, unpack, write_program,
};
use meshd_lab::Namespace;
use meshd_types::{MacAddr, SystemUuid};
use serde_json::Value;
use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time for an agent to end.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// A machine.
pub struct PxeNode<'a> {
    pub world: &'a World,
    pub mac: MacAddr,
    pub uuid: SystemUuid,
    pub serial: String,
    /// What DHCP gave it last; without one it asks from whatever address the wire has.
    pub address: Cell<Option<Ipv4Addr>>,
}

/// The files of a fetched overlay.
pub type Overlay = BTreeMap<String, (u32, Vec<u8>)>;

/// What iPXE was told to do.
#[derive(Debug)]
pub struct Script(pub String);

impl Script {
    /// The URLs of `kernel` and `initrd` lines, in order.
    pub fn urls(&self) -> Vec<String> {
        let words = self
            .0
            .lines()
            .filter(|line| line.starts_with("kernel ") || line.starts_with("initrd "));
        words
            .filter_map(|line| line.split(' ').find(|word| word.contains("://")))
            .map(str::to_owned)
            .collect()
    }

    /// The overlay's URL, which holds the capability.
    pub fn overlay(&self) -> Option<String> {
        self.urls().into_iter().find(|url| url.contains("/overlay/"))
    }

    pub fn modloop(&self) -> String {
        let word = self.0.split_whitespace().find_map(|word| word.strip_prefix("modloop="));
        word.expect("modloop= on the kernel command line").to_owned()
    }

    /// What the first program of the node fetches: the modloop, or the root that the overlay names.
    fn fetched_by_init(&self, overlay: &[u8]) -> String {
        if self.0.contains(" rdinit=") {
            let (config, _) = unpack::stage1(overlay);
            return config["root"]["urls"][0].as_str().expect("a URL").to_owned();
        }
        self.modloop()
    }
}

impl<'a> PxeNode<'a> {
    pub fn new(world: &'a World, number: u8) -> Self {
        let uuid = SystemUuid([0x4c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, number]);
        PxeNode {
            world,
            mac: MacAddr([0x52, 0x54, 0, 0, 0, number]),
            uuid,
            serial: format!("SN-{number}"),
            address: Cell::default(),
        }
    }

    /// Where it runs: its own network card is the only one there.
    pub fn host(&self) -> Namespace {
        self.world.host(self.mac)
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host().inside(work).unwrap()
    }

    /// Takes part in DHCP, and configures the address as a machine does.
    pub fn dhcp(&self, who: As) -> Granted {
        let mac = self.mac;
        let uuid = self.uuid;
        let granted = self.inside(|| dhcp::obtain(mac, uuid, who));
        let host = self.host();
        if self.address.get() != Some(granted.address) {
            host.ip(&["address", "flush", "dev", "eth0"]).unwrap();
        }
        host.ip(&["address", "replace", &format!("{}/24", granted.address), "dev", "eth0"])
            .unwrap();
        if let Some(router) = granted.router {
            host.ip(&["route", "replace", "default", "via", &router.to_string()]).unwrap();
        }
        self.address.set(Some(granted.address));
        granted
    }

    pub fn tftp(&self, name: &str) -> std::io::Result<Vec<u8>> {
        let server: Ipv4Addr = CENTRAL.parse().unwrap();
        let from = self.address.get();
        self.inside(|| tftp::get(server, name, from))
    }

    pub fn get(&self, url: &str) -> std::io::Result<http::Answer> {
        self.request("GET", url)
    }

    pub fn head(&self, url: &str) -> std::io::Result<http::Answer> {
        self.request("HEAD", url)
    }

    fn request(&self, method: &str, url: &str) -> std::io::Result<http::Answer> {
        let from = self.address.get();
        self.inside(|| http::request(method, url, from))
    }

    /// The URL that iPXE asks after the entry script.
    pub fn script_url(&self) -> String {
        let mac = self.mac;
        let uuid = self.uuid;
        let serial = &self.serial;
        format!(
            "http://{CENTRAL}:8080/boot/script?mac={mac}&uuid={uuid}&serial={serial}&manufacturer=QEMU&product=world&arch=x86_64"
        )
    }

    pub fn script(&self) -> std::io::Result<Script> {
        let entry = self.get(&format!("http://{CENTRAL}:8080/boot.ipxe"))?;
        assert!(entry.text().starts_with("#!ipxe"), "{}", entry.text());
        let answer = self.get(&self.script_url())?;
        assert_eq!(answer.status, 200, "iPXE is always given a script");
        assert!(answer.text().starts_with("#!ipxe"));
        Ok(Script(answer.text()))
    }

    /// Firmware, loader, iPXE; ends with the script, or an error where iPXE would try again.
    pub fn power_on(&self) -> std::io::Result<Script> {
        let firmware = self.dhcp(As::Firmware(0));
        assert_eq!(firmware.file, "undionly.kpxe");
        assert_eq!(self.tftp(&firmware.file)?.len(), 70_001);
        self.ipxe()
    }

    /// From iPXE's DHCP to its script. As a refusal without a session says, DHCP is done again: this
    /// machine is faster than any other, and its exchange may have come before meshd had recorded
    /// that it has its overlay.
    pub fn ipxe(&self) -> std::io::Result<Script> {
        eventually("a boot session", || {
            let granted = self.dhcp(As::Ipxe);
            assert_eq!(granted.file, format!("http://{CENTRAL}:8080/boot.ipxe"));
            match self.script() {
                Ok(script) if script.0.contains("# refusal no_session") => Err(script.0),
                script => Ok(script),
            }
        })
    }

    /// Says to everybody that it takes an address of another server, as every client does.
    pub fn take_address(&self, address: Ipv4Addr) {
        let option = (50, address.octets().to_vec());
        let request = dhcp::packet(self.mac, self.uuid, As::Ipxe, 3, &[option]);
        let send = || dhcp::client().send_to(&request, (Ipv4Addr::BROADCAST, 67));
        self.inside(send).unwrap();
    }

    /// Takes an address of another server until its boot session is open.
    pub fn open_session_at(&self, address: Ipv4Addr) {
        let mac = self.mac.to_string();
        eventually("its boot session is open", || {
            self.take_address(address);
            let started = self.world.events("boot_started");
            let is_open = started.iter().any(|event| event.to_string().contains(&mac));
            if is_open { Ok(()) } else { Err(self.world.log_text()) }
        });
    }

    /// Everything that the script names, the overlay last, and the modloop or the root.
    pub fn load(&self, script: &Script) -> std::io::Result<Overlay> {
        for url in script.urls().iter().filter(|url| !url.contains("/overlay/")) {
            let answer = self.get(url)?;
            assert_eq!(answer.status, 200, "{url}");
        }
        let overlay =
            self.get(&script.overlay().ok_or_else(|| std::io::Error::other(script.0.clone()))?)?;
        if overlay.status != 200 {
            return Err(std::io::Error::other(format!("overlay: {}", overlay.status)));
        }
        self.dhcp(As::Os);
        assert_eq!(self.get(&script.fetched_by_init(&overlay.body))?.status, 200);
        Ok(unpack::overlay(&overlay.body))
    }

    /// Boots, trying again from iPXE as the scripts say, until it has its overlay.
    pub fn boot(&self) -> Overlay {
        self.go_on(self.power_on())
    }

    /// What a script tells iPXE to do when something could not be fetched.
    pub fn retry_from_ipxe(&self) -> Overlay {
        self.go_on(self.ipxe())
    }

    fn go_on(&self, mut script: std::io::Result<Script>) -> Overlay {
        eventually("the machine boots", || {
            let loaded = script
                .as_ref()
                .map_err(ToString::to_string)
                .and_then(|script| self.load(script).map_err(|error| error.to_string()));
            if loaded.is_err() {
                script = self.ipxe();
            }
            loaded
        })
    }

    /// Starts the real mesh-agent with what the overlay brought.
    pub fn start_agent(&self, overlay: &Overlay) -> Agent {
        self.start_agent_with(overlay, |_| {})
    }

    /// The same on a machine whose root `prepare` completes.
    pub fn start_agent_with(&self, overlay: &Overlay, prepare: impl FnOnce(&Path)) -> Agent {
        let root = tempfile::tempdir().unwrap();
        let place = |name: &str| root.path().join(name);
        let content =
            |path: &str| &overlay.get(path).unwrap_or_else(|| panic!("{path} is in the overlay")).1;
        fs::create_dir_all(place("root/etc/meshd")).unwrap();
        fs::write(place("boot.json"), content("etc/meshd/boot.json")).unwrap();
        fs::write(place("agent.json"), content("etc/meshd/agent.json")).unwrap();
        let config: Value = serde_json::from_slice(content("etc/meshd/agent.json")).unwrap();
        for (key, folder, prefix) in
            [("services", "run/openrc/started", ""), ("units", "run/systemd/units", "invocation:")]
        {
            let folder = place("root").join(folder);
            fs::create_dir_all(&folder).unwrap();
            for name in config[key].as_array().into_iter().flatten().filter_map(Value::as_str) {
                symlink("/dev/null", folder.join(format!("{prefix}{name}"))).unwrap();
            }
        }
        prepare(&place("root"));
        write_program(&place("reboot"), "#!/bin/sh\n: >\"$0.ordered\"\n");
        let host = self.host();
        Agent { child: spawn_agent(&host, root.path()), host, root }
    }
}

fn spawn_agent(host: &Namespace, folder: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    let mut command = Command::new(program(env!("CARGO_BIN_EXE_mesh-agent")));
    command.arg("run");
    for (option, file) in [
        ("--config", "agent.json"),
        ("--boot-file", "boot.json"),
        ("--state-dir", "state"),
        // Others of this machine have theirs.
        ("--containers-dir", "containers"),
        ("--root", "root"),
        ("--reboot", "reboot"),
    ] {
        command.arg(option).arg(folder.join(file));
    }
    // A test gives its nodes a store each by making the folder.
    let store = folder.join("machines");
    if store.exists() {
        command.arg("--vm-dir").arg(store);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    host.spawn(&mut command).unwrap()
}

/// A running mesh-agent. When dropped it ends as at a shutdown of its node, and says goodbye to the
/// central node.
pub struct Agent {
    child: Child,
    host: Namespace,
    root: tempfile::TempDir,
}

impl Agent {
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// True if it has obeyed an order to reboot its machine.
    pub fn has_rebooted(&self) -> bool {
        self.file("reboot.ordered").exists()
    }

    /// Ends the agent as a power cut does: without a goodbye.
    pub fn cut_power(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the agent again on its node, as its supervisor does.
    pub fn restart(&mut self) {
        self.child = spawn_agent(&self.host, self.root.path());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let end = Instant::now() + SHUTDOWN;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            thread::park_timeout(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
