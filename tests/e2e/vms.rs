//! A netbooted node runs a virtual machine under its own KVM, with a GPU given whole: its console from here to the guest and back, the
//! death of the agent, the death of QEMU, and the end of KVM. One boot.

use crate::{
    overlays,
    racks::{BOOT, OrEnd, SOON, until_phase, until_written, up},
};
use meshd::lab::{Rack, Wait};
use serde_json::Value;
use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

const NODE: u8 = 1;
const HELLO: &str = "hello from the guest";
/// What the guest says of a device that it finds on its own PCI buses.
const SEEN: &str = " with 1002:5046";
/// From an order to a guest that speaks, on a machine that is emulated itself.
const GUEST: Duration = Duration::from_secs(240);

/// What happens on the node, in time with what is typed at the guest's console: it answers with the letter that follows.
const TRIAL: &str = r#"#!/sbin/openrc-run
description="does to virtual machines what befalls them"

depend() {
	after mesh-agent
}

trial() {
	until console=$(ls /var/lib/machines/*/console.log 2>/dev/null) && grep -q "hello" "$console"; do sleep 1; done
	pid=$(cat "${console%/console.log}/qemu.pid")
	echo "TRIAL-ACCEL $(tr '\0' ' ' <"/proc/$pid/cmdline" | grep -o -e '-accel [a-z]*')"
	echo "TRIAL-UNIT $(mesh-agent vfio bind)"
	until grep -q 5046I "$console"; do sleep 1; done
	kill -9 $(pidof mesh-agent)
	until grep -q "taken over" /var/log/messages; do sleep 1; done
	echo "TRIAL-TAKEN $([ -e "/proc/$pid/cmdline" ] && echo runs)"
	until grep -q 5046IY "$console"; do sleep 1; done
	kill -9 "$pid"
	until rmmod kvm_amd 2>/dev/null; do sleep 1; done
	echo "TRIAL-END"
}

start() {
	trial >/dev/ttyS0 2>&1 &
}
"#;

/// The repository's overlays, `kvm-host` without its packages: QEMU comes by the bundle.
fn with_trial(dir: &Path) -> PathBuf {
    let overlays = overlays::with_service(dir, "trial", TRIAL);
    let manifest = overlays.join("kvm-host/overlay.toml");
    let text = fs::read_to_string(&manifest).expect("there");
    let lines = text.lines().filter(|line| !line.starts_with("packages = ")).map(|line| format!("{line}\n"));
    fs::write(manifest, lines.collect::<String>()).expect("written");
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

#[test]
fn a_netbooted_node_runs_a_machine_with_its_gpu_through_the_deaths_of_agent_and_qemu() {
    let mut files = None;
    let mut test = up(|mut options, dir| {
        files = Some((guest(dir), dir.join("one.toml"), dir.join("lab/site.toml")));
        options.nodes = 1;
        options.extras = vec![vec![meshd::lab::Extra::Iommu, meshd::lab::Extra::Gpu]];
        options
            .set("enroll.policy", "auto")
            .set("site.overlays_dir", &with_trial(dir).display().to_string())
            .set("defaults.profile", "vm-host")
            .set("profiles.vm-host.extends", "discovery")
            .set("profiles.vm-host.overlays", r#"["vfio", "kvm-host", "trial"]"#)
            .set("profiles.vm-host.bundles", r#"["qemu"]"#)
            .set("profiles.vm-host.vfio.devices", r#"["class:0300"]"#)
    });
    let (image, toml, site) = files.expect("made");
    let rack = &mut test.rack;
    let digest = rack.tell(&["volume", "add", image.to_str().expect("plain")]).or_end().trim().to_owned();
    until_phase(rack, NODE, "online", BOOT);
    let node = rack.ask(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    let unit = node["facts"]["units"][0]["members"][0]["address"].as_str().expect("the GPU").to_owned();
    let text = format!(
        "name = \"one\"\nvcpus = 1\nmemory = \"64M\"\nunits = [\"{unit}\"]\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    fs::write(&toml, text).expect("written");
    rack.tell(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
    reaches(rack, GUEST, "the machine runs", |vm| vm["state"] == "running");

    let mut operator = Sits::down(&site);
    operator.hears(&format!("{HELLO}{SEEN}"));
    let serial = until_written(rack, NODE, "TRIAL-UNIT", SOON);
    assert_eq!(tried(&serial, "TRIAL-ACCEL"), "-accel kvm");
    assert!(tried(&serial, "TRIAL-UNIT").contains("in_use"), "{}", tried(&serial, "TRIAL-UNIT"));
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
    operator.types(b'X');

    // QEMU is killed now, and then the node has no KVM any more.
    let failed = reaches(rack, SOON, "its death is told", |vm| vm["state"] == "failed");
    assert_eq!(failed["failure"]["kind"], "crashed", "{failed}");
    until_written(rack, NODE, "TRIAL-END", SOON);
    rack.tell(&["vm", "start", "one"]).or_end();
    let refused = |vm: &Value| vm["failure"]["detail"].as_str().is_some_and(|detail| detail.contains("kvm_missing"));
    reaches(rack, SOON, "a node without KVM refuses", |vm| vm["state"] == "failed" && refused(vm));
    rack.tell(&["vm", "delete", "one", "--yes"]).or_end();
    // The folder of blobs is shared with other tests.
    rack.wait(SOON, "nothing is left", |rack| {
        let gone = rack.tell(&["volume", "remove", &digest, "--yes"]);
        Ok(Wait::some(gone.as_ref().ok().map(|_| ()), format!("{gone:?}")))
    })
    .or_end();
}
