//! A netbooted node runs virtual machines under its own KVM: one with a GPU given whole, one that reaches beyond the node by the private
//! network, one on the site's own with a slot and its disk. Its console from here to the guest and back, what befalls the network, the death
//! of the agent, the death of QEMU, and the end of KVM. One boot.

use crate::{
    overlays,
    private_net::{self, ADDRESS, ANSWERED, MAC, Server},
    racks::{BOOT, OrEnd, SOON, until_phase, until_written, up},
};
use meshd_lab::{Extra, LabError, Rack, Wait};
use serde_json::Value;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

const NODE: u8 = 1;
/// Reached by way of the boot LAN's router.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const HELLO: &str = "hello from the guest";
/// What the guest says of a device that it finds on its own PCI buses.
const SEEN: &str = " with 1002:5046";
/// From an order to a guest that speaks, on a machine that is emulated itself.
const GUEST: Duration = Duration::from_secs(240);
/// How often a node says that it is there, by default.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// What happens on the node, in time with what is typed at the guest's console: it answers with the letter that follows.
const TRIAL: &str = r#"#!/sbin/openrc-run
description="does to virtual machines what befalls them"

depend() {
	after kvm-host
	before mesh-agent
}

# Starts a KVM guest that never runs. Linux patches its scheduler when the first guest begins, and QEMU 7.2 loses such a patch if a second
# processor translates the same code meanwhile (fixed in QEMU 8.1: pages are locked before translation). One processor is safe.
hold_kvm() {
	other=/sys/devices/system/cpu/cpu1/online
	echo 0 >"$other"
	/opt/bundles/qemu/bin/qemu-system-x86_64 -machine none,accel=kvm -nodefaults -display none -serial none -monitor none -S &
	holder=$!
	until ls -l /proc/$holder/fd | grep -q kvm-vm; do sleep 1; done
	# The first cpuset below the root patches the page allocator in the same way; this one stays.
	groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
	echo +cpuset >"$groups/cgroup.subtree_control" && mkdir "$groups/held"
	echo 1 >"$other"
	echo "TRIAL-HOLD $(cat "$other")"
}

# Ends that guest, the last one.
release_kvm() {
	echo 0 >/sys/devices/system/cpu/cpu1/online
	kill -9 "$holder"
}

# The folder of a machine.
folder() {
	file=$(grep -l "\"name\":\"$1\"" /var/lib/machines/*/vm.json 2>/dev/null) && echo "${file%/vm.json}"
}

nat() {
	mesh-agent doctor --lines | grep check=nat
}

network() {
	until net=$(folder net) && grep -q "the guest was answered" "$net/console.log"; do sleep 1; done
	echo "TRIAL-NAT $(nat)"
	before=$(cat /sys/class/net/mesh-nat0/ifindex)
	kill -STOP $(pidof mesh-agent)
	forget-nat || echo "TRIAL-FORGET $?"
	ip addr flush dev mesh-nat0
	echo "TRIAL-DRIFT $(nat)"
	kill -CONT $(pidof mesh-agent)
	until nat | grep -q status=PASS; do sleep 1; done
	echo "TRIAL-MENDED $(grep -c "the private network is mended" /var/log/messages) times, bridge $before $(cat /sys/class/net/mesh-nat0/ifindex)"
}

trial() {
	until one=$(folder one) && grep -q "hello" "$one/console.log"; do sleep 1; done
	console=$one/console.log
	pid=$(cat "$one/qemu.pid")
	echo "TRIAL-ACCEL $(tr '\0' ' ' <"/proc/$pid/cmdline" | grep -o -e '-accel [a-z]*')"
	groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
	own=$(echo "$groups"/meshd-vm-*-"${one##*/}")
	echo "TRIAL-CPUS $(cat "$own/cpuset.cpus" "$own/cpuset.cpus.partition" "$groups/cpuset.cpus.effective" | tr '\n' ' ')"
	echo "TRIAL-UNIT $(mesh-agent vfio bind)"
	network
	until grep -q 5046I "$console"; do sleep 1; done
	kill -9 $(pidof mesh-agent)
	until [ "$(grep -c "taken over" /var/log/messages)" = 2 ]; do sleep 1; done
	echo "TRIAL-TAKEN $([ -e "/proc/$pid/cmdline" ] && echo runs)"
	until grep -q 5046IY "$console"; do sleep 1; done
	until ! ls /sys/class/net | grep -q "^vm"; do sleep 1; done
	echo "TRIAL-RELEASED $(ls /var/lib/machines | grep -c -)"
	kill -9 "$pid"
	release_kvm
	until rmmod kvm_amd 2>/dev/null; do sleep 1; done
	echo "TRIAL-END"
}

start() {
	hold_kvm >/dev/ttyS0 2>&1
	trial >/dev/ttyS0 2>&1 &
}
"#;

/// The repository's overlays, and one that prepares the node for the test.
fn with_trial(dir: &Path) -> PathBuf {
    let overlays = overlays::with_service(dir, "trial", TRIAL);
    private_net::add_forget(&overlays.join("trial"));
    overlays
}

/// Real-mode code that writes a text to COM1; see tests/it/vms/guest.rs.
fn say(text_at: u16) -> Vec<u8> {
    let [low, high] = text_at.to_le_bytes();
    let mut code = vec![0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xbe, low, high];
    code.extend([0xac, 0x84, 0xc0, 0x74, 0x12, 0x88, 0xc3, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb]);
    code.extend([0x88, 0xd8, 0xba, 0xf8, 0x03, 0xee, 0xeb, 0xe9]);
    code
}

/// Looks at the first function of each device of each bus, and passes over the next text where none is 1002:5046:
/// `mov ecx, 0x80000000; next: mov eax, ecx; mov dx, 0xcf8; out dx, eax; mov dx, 0xcfc; in eax, dx; cmp eax, 0x50461002; je found;
/// add ecx, 0x800; cmp ecx, 0x81000000; jb next; jmp behind; found:`
const SCAN: [u8; 45] = [
    0x66, 0xb9, 0, 0, 0, 0x80, 0x66, 0x89, 0xc8, 0xba, 0xf8, 0x0c, 0x66, 0xef, 0xba, 0xfc, 0x0c, 0x66, 0xed, 0x66,
    0x3d, 0x02, 0x10, 0x46, 0x50, 0x74, 0x12, 0x66, 0x81, 0xc1, 0, 0x08, 0, 0, 0x66, 0x81, 0xf9, 0, 0, 0, 0x81, 0x72,
    0xdb, 0xeb, 0x1f,
];
/// `wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; inc al; out dx, al; jmp wait`
const ECHO: [u8; 17] =
    [0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf8, 0xba, 0xf8, 0x03, 0xec, 0xfe, 0xc0, 0xee, 0xeb, 0xef];

/// A guest of one boot sector, as qcow2.
fn guest(dir: &Path) -> PathBuf {
    let code = [say(0x7d00), SCAN.to_vec(), say(0x7d40), ECHO.to_vec()].concat();
    let mut disk = vec![0; 1 << 20];
    for (at, bytes) in [(0, code.as_slice()), (0x100, HELLO.as_bytes()), (0x140, SEEN.as_bytes()), (510, &[0x55, 0xaa])]
    {
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let (raw, image) = (dir.join("guest.raw"), dir.join("e2e-guest.qcow2"));
    fs::write(&raw, disk).expect("written");
    let made = Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&raw).arg(&image).status();
    assert!(made.expect("qemu-img").success());
    image
}

/// Somebody at the console.
struct Sits {
    child: Child,
    heard: Arc<Mutex<String>>,
}

impl Sits {
    fn down(site: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--site").arg(site).args(["vm", "console", "one"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let (mut shown, heard) = (child.stdout.take().expect("piped"), Arc::<Mutex<String>>::default());
        let hears = heard.clone();
        thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(length @ 1..) = shown.read(&mut bytes) {
                hears.lock().expect("whole").push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Sits { child, heard }
    }

    fn types(&mut self, key: u8) {
        self.child.stdin.as_mut().expect("piped").write_all(&[key]).expect("it listens");
    }

    fn hears(&self, text: &str) {
        let end = Instant::now() + GUEST;
        while !self.heard.lock().expect("whole").contains(text) {
            assert!(Instant::now() < end, "no `{text}` in {:?}", self.heard.lock().expect("whole"));
            thread::park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Sits {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shown(rack: &Rack) -> Value {
    rack.ask(&["vm", "show", "one"]).or_end()
}

fn reaches(rack: &Rack, after: Duration, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let look = |rack: &Rack| {
        let vm = rack.ask(&["vm", "show", "one"])?;
        Ok(Wait::some(is(&vm).then(|| vm.clone()), vm.to_string()))
    };
    rack.wait(after, what, look).or_end()
}

fn tried(serial: &str, word: &str) -> String {
    let line = serial.lines().find_map(|line| line.split_once(&format!("{word} ")).map(|(_, rest)| rest));
    line.unwrap_or_else(|| panic!("the node wrote no {word}")).trim().to_owned()
}

/// A server on this side, beyond the boot LAN, which no guest of the private network reaches, and the digest of a CD that asks it.
fn beyond(rack: &Rack, dir: &Path) -> (Server, String) {
    let add = || Command::new("ip").args(["addr", "add", &format!("{BEYOND}/32"), "dev", "lo"]).status();
    let added = rack.namespace().inside(add).or_end();
    assert!(added.expect("ip").success());
    let server = rack.namespace().inside(|| Server::start(BEYOND)).or_end();
    let cd = private_net::cd(dir, BEYOND);
    let digest = rack.tell(&["volume", "add", cd.to_str().expect("plain")]).or_end().trim().to_owned();
    (server, digest)
}

/// Runs a machine that boots that CD and has one card; `more` are keys and tables of its file.
fn asks_by(rack: &Rack, dir: &Path, name: &str, cd: &str, card: &str, (keys, tables): (&str, &str)) {
    let text = format!(
        "name = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\n{keys}\n\
         [[volume]]\nname = \"cd\"\nformat = \"iso\"\ndigest = \"{cd}\"\n[[nic]]\n{card}\n{tables}"
    );
    let toml = dir.join(format!("{name}.toml"));
    fs::write(&toml, text).expect("written");
    rack.tell(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
}

/// On the bridge of overlay `bridge` meshd itself answers a machine, with the address of its record, and everyone sees that one. It has a
/// slot with its disk, too: an image is written there, and when the machine is deleted nothing of it is left.
fn is_on_the_site_with_a_slot(rack: &Rack, dir: &Path, server: &Server, cd: &str, image: &str) -> Ipv4Addr {
    let slot = format!("{}/{}", rack.id(NODE), gpu(rack));
    rack.tell(&["slot", "approve", &slot, "--disk", "LAB-DISK"]).or_end();
    let [a, b, c, _] = rack.site().segments[0].address.expect("the lab's site names it").octets();
    let address = Ipv4Addr::new(a, b, c, 251);
    let disk = format!("[[volume]]\nname = \"own\"\nformat = \"raw\"\ndisk = \"slot\"\ndigest = \"{image}\"\n");
    asks_by(rack, dir, "site", cd, &format!("bridge = \"br0\"\naddress = \"{address}\""), ("units = 1", &disk));
    let wanted = (address, format!("/first?ip={address}"));
    let asked = |_: &Rack| {
        let asked = server.asked();
        Ok(Wait::some(asked.contains(&wanted).then_some(()), format!("{asked:?}")))
    };
    rack.wait(GUEST, "a machine on the site's network asks", asked).or_end();
    let on_disk = || fs::read(rack.disk_file(NODE)).expect("a disk");
    assert_eq!(on_disk()[0x100..0x100 + HELLO.len()], *HELLO.as_bytes(), "the image is on it");
    rack.tell(&["vm", "delete", "site", "--yes", "--wait"]).or_end();
    assert!(on_disk().iter().all(|byte| *byte == 0), "nothing is left on it");
    let is_free = |rack: &Rack| {
        let slots = rack.ask(&["slot", "list"])?;
        Ok(Wait::some((slots[0]["state"] == "available").then_some(()), slots.to_string()))
    };
    rack.wait(SOON, "its slot can be given again", is_free).or_end();
    address
}

/// The private network works, is mended once when it does not, and the guest reaches beyond it before and after.
fn befalls_network(rack: &Rack, server: &Server, other: Ipv4Addr) {
    let node = rack.ask(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    let own = node["address"].as_str().expect("it has one").to_owned();
    let ask = |path: &str| (own.parse().expect("an address"), format!("/{path}?ip={ADDRESS}"));
    let asks = |since: usize, path: &str| {
        let is_there = |_: &Rack| {
            let asked = server.asked();
            let is = asked.iter().skip(since).any(|one| *one == ask(path));
            Ok(Wait::some(is.then_some(()), format!("{asked:?}")))
        };
        rack.wait(GUEST, "the guest asks beyond the node", is_there).or_end();
    };
    asks(0, "first");
    // The server has the question before the guest has written its answer to the console, and then the trial stops the agent for a while.
    rack.wait(GUEST, "the guest writes that it was answered", |rack| {
        let told = rack.tell(&["vm", "logs", "net"]);
        let is = told.as_ref().is_ok_and(|told| told.contains(ANSWERED));
        Ok(Wait::some(is.then_some(()), format!("{told:?}")))
    })
    .or_end();
    let serial = until_written(rack, NODE, "TRIAL-MENDED", GUEST);
    assert!(!serial.contains("TRIAL-FORGET"), "the rule was not there");
    assert!(tried(&serial, "TRIAL-NAT").contains("status=PASS"), "{}", tried(&serial, "TRIAL-NAT"));
    let drift = tried(&serial, "TRIAL-DRIFT").replace("\\s", " ");
    assert!(drift.contains("status=FAIL") && drift.contains("its address, the masquerade rule"), "{drift}");
    let mended = tried(&serial, "TRIAL-MENDED");
    let words: Vec<&str> = mended.split(' ').collect();
    // Once when it was made, once after the drift; the bridge is the one that it was.
    assert!(words[0] == "2" && words[3] == words[4], "{mended}");
    asks(server.asked().len(), "again");
    assert!(
        server.asked().iter().all(|(who, _)| *who == ask("").0 || *who == other),
        "nobody shows another address: {:?}",
        server.asked()
    );
}

fn gpu(rack: &Rack) -> String {
    let node = rack.ask(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    node["facts"]["units"][0]["members"][0]["address"].as_str().expect("the GPU").to_owned()
}

/// A machine that gets the node's GPU.
fn create_with_gpu(rack: &Rack, digest: &str, toml: &Path) {
    let unit = gpu(rack);
    let text = format!(
        "name = \"one\"\nvcpus = 1\nmemory = \"64M\"\nunits = [\"{unit}\"]\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    fs::write(toml, text).expect("written");
    rack.tell(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
}

/// The folder of blobs is shared with other tests.
fn volumes_are_gone(rack: &Rack, digest: &str, cd: &str) {
    rack.wait(SOON, "nothing is left", |rack| {
        let said = [digest, cd]
            .map(|digest| rack.tell(&["volume", "remove", digest, "--yes"]).map_err(|error| error.to_string()));
        let left = rack.ask(&["volume", "list"])?.to_string();
        let is_gone = !left.contains(digest) && !left.contains(cd);
        Ok(Wait::some(is_gone.then_some(()), format!("{said:?}")))
    })
    .or_end();
}

/// Without KVM its own check says so, and it takes no work: neither what it has nor anything new.
fn takes_no_work(rack: &Rack, toml: &Path) {
    // Degraded alone it is after each link, too, until its checks are there; and then an order waits.
    let lacks_kvm = |node: &Value| node["conditions"].to_string().contains("/dev/kvm cannot be opened");
    rack.wait_node(NODE, GUEST, "degraded for want of KVM", lacks_kvm).or_end();
    let refused = |said: Result<String, LabError>| said.expect_err("there is no KVM").to_string();
    let said = refused(rack.tell(&["vm", "start", "one"]));
    assert!(said.contains("degraded"), "{said}");
    let other = fs::read_to_string(toml).expect("there").replace("\"one\"", "\"two\"");
    fs::write(toml, other).expect("written");
    let said = refused(rack.tell(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]));
    assert!(said.contains("kvm_missing"), "{said}");
}

#[test]
fn a_netbooted_node_runs_machines_with_its_gpu_disk_and_networks_through_drift_and_the_deaths_of_agent_and_qemu() {
    let mut files = None;
    let mut test = up(|mut options, dir| {
        files = Some((guest(dir), dir.join("one.toml"), dir.join("lab/site.toml")));
        options.nodes = 1;
        options.extras = vec![vec![Extra::Iommu, Extra::Gpu, Extra::Disk]];
        options
            .set("enroll.policy", "auto")
            .set("dhcp.router", "10.77.0.1")
            .set("site.overlays_dir", &with_trial(dir).display().to_string())
            .set("defaults.profile", "vm-host")
            .set("profiles.vm-host.extends", "discovery")
            .set("profiles.vm-host.overlays", r#"["vfio", "kvm-host", "bridge", "trial"]"#)
            .set("profiles.vm-host.bundles", r#"["qemu"]"#)
            .set("profiles.vm-host.vars", "{ kvm_nat = true }")
            .set("profiles.vm-host.vfio.devices", r#"["class:0300"]"#)
    });
    let (image, toml, site) = files.expect("made");
    let rack = &mut test.rack;
    let digest = rack.tell(&["volume", "add", image.to_str().expect("plain")]).or_end().trim().to_owned();
    until_phase(rack, NODE, "online", BOOT);
    let dir = toml.parent().expect("a folder");
    let (server, cd) = beyond(rack, dir);
    let other = is_on_the_site_with_a_slot(rack, dir, &server, &cd, &digest);
    create_with_gpu(rack, &digest, &toml);
    let card = format!("bridge = \"mesh-nat0\"\nmac = \"{MAC}\"\naddress = \"{ADDRESS}\"");
    asks_by(rack, dir, "net", &cd, &card, ("", ""));
    reaches(rack, GUEST, "the machine runs", |vm| vm["state"] == "running");

    let mut operator = Sits::down(&site);
    operator.hears(&format!("{HELLO}{SEEN}"));
    let serial = until_written(rack, NODE, "TRIAL-UNIT", SOON);
    assert_eq!(tried(&serial, "TRIAL-ACCEL"), "-accel kvm");
    assert_eq!(tried(&serial, "TRIAL-CPUS"), "1 root 0", "the machine has a processor for itself");
    assert!(tried(&serial, "TRIAL-UNIT").contains("in_use"), "{}", tried(&serial, "TRIAL-UNIT"));
    befalls_network(rack, &server, other);
    operator.types(b'H');
    operator.hears(&format!("{SEEN}I"));

    // The agent is killed now; its supervisor starts another, which has the machine.
    let serial = until_written(rack, NODE, "TRIAL-TAKEN", GUEST);
    assert_eq!(tried(&serial, "TRIAL-TAKEN"), "runs");
    reaches(rack, SOON, "it is linked again", |vm| vm["state"] == "running");
    drop(operator);
    let mut operator = rack
        .wait(SOON, "the console is brought again", |rack| {
            let log = rack.tell(&["vm", "logs", "one"]);
            let is = log.as_ref().is_ok_and(|log| log.contains(&format!("{SEEN}I")));
            Ok(Wait::some(is.then(|| Sits::down(&site)), format!("{log:?}")))
        })
        .or_end();
    operator.hears(HELLO);
    assert_eq!(shown(rack)["restarts"], 0);
    rack.tell(&["vm", "delete", "net", "--yes"]).or_end();
    operator.types(b'X');
    let serial = until_written(rack, NODE, "TRIAL-RELEASED", SOON);
    assert_eq!(tried(&serial, "TRIAL-RELEASED"), "1", "its port and its folder are gone");

    // QEMU is killed now, and then the node has no KVM any more.
    let failed = reaches(rack, HEARTBEAT, "its death is told", |vm| vm["state"] == "failed");
    assert_eq!(failed["failure"]["kind"], "crashed", "{failed}");
    until_written(rack, NODE, "TRIAL-END", SOON);
    takes_no_work(rack, &toml);
    rack.tell(&["vm", "delete", "one", "--yes"]).or_end();
    volumes_are_gone(rack, &digest, &cd);
}
