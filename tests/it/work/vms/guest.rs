//! Guests of one boot sector, and a node that has QEMU and no KVM.

use meshd_agent::vm::{CheckRunner, ConsoleEvent, CpuModels, HostConfig, VmManager, Vms};
use meshd_proto::{
    Check,
    vm::{ReportedVmState, VmReport, VmSpec},
};
use meshd_types::{Digest, SystemUuid};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tokio::{sync::watch, time::timeout};

/// Far more than anything here takes, on any machine.
pub const DEADLINE: Duration = Duration::from_secs(300);
/// What a guest writes first.
pub const HELLO: &str = "hello from the guest";

/// What a guest does after its hello.
#[derive(Clone, Copy)]
pub enum Guest {
    /// Nothing: it hears no power button.
    Deaf,
    /// Switches itself off when the power button is pressed.
    Polite,
    /// Switches itself off at once.
    Short,
    /// Writes each character that is typed, plus one.
    Echo,
    /// Writes numbers, each on a line of its own, and waits for a key after each [`COUNTED`].
    Counts,
    /// Writes its disk full, from 1 MiB to its end, then a `!`.
    Writer,
}

/// How many numbers are written between two keys.
pub const COUNTED: usize = 10_000;
/// Bytes of a number with its line's end.
pub const NUMBER: usize = 9;

/// Real-mode code that writes the text behind it to COM1, then goes on at the end of itself.
/// `cli; xor ax, ax; mov ds, ax; mov si, TEXT; next: lodsb; test al, al; jz done; mov bl, al; wait: in al, 0x3fd; test al, 0x20; jz wait; mov al, bl; out 0x3f8, al; jmp next; done:`
fn hello(text_at: u16) -> Vec<u8> {
    let [low, high] = text_at.to_le_bytes();
    let mut code = vec![0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xbe, low, high];
    code.extend([
        0xac, 0x84, 0xc0, 0x74, 0x12, 0x88, 0xc3, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb,
    ]);
    code.extend([0x88, 0xd8, 0xba, 0xf8, 0x03, 0xee, 0xeb, 0xe9]);
    code
}

/// `mov dx, 0x604; mov ax, 0x2000; out dx, ax`: ACPI's sleep state 5, where SeaBIOS puts it.
const OFF: [u8; 7] = [0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef];
/// `mov dx, 0x602; mov ax, 0x100; out dx, ax; mov dx, 0x600; wait: in ax, dx; test ah, 1; jz wait`:
/// enables the power button, and waits for it.
const BUTTON: [u8; 16] = [
    0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, 0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xfa,
];
/// `wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; inc al; out dx, al; jmp wait`
const ECHO: [u8; 17] = [
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf8, 0xba, 0xf8, 0x03, 0xec, 0xfe, 0xc0, 0xee, 0xeb,
    0xef,
];
/// Adds one to the digits of the text and writes them again:
/// `mov si, LAST; next: inc byte [si]; cmp byte [si], '9' + 1; jne again; mov byte [si], '0'; dec si; cmp si, TEXT + 3; jne next; wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; jmp next`,
/// where `again` is the `mov si, TEXT` of [`hello`].
const COUNT: [u8; 34] = [
    0xbe, 0x07, 0x7d, 0xfe, 0x04, 0x80, 0x3c, 0x3a, 0x75, 0xdc, 0xc6, 0x04, 0x30, 0x4e, 0x81, 0xfe,
    0x03, 0x7d, 0x75, 0xef, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf8, 0xba, 0xf8, 0x03, 0xec,
    0xeb, 0xe1,
];
/// Where [`WRITER`]'s request lies in the sector, and the request: 64 sectors from 0000:8000 to
/// sector 2048 on.
const REQUEST: (usize, [u8; 16]) = (0x180, [16, 0, 64, 0, 0, 0x80, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0]);
/// `next: mov si, 0x7d80; mov ax, 0x4300; mov dl, 0x80; int 0x13; jc end; add word [0x7d88], 64; adc word [0x7d8a], 0; jmp next; end: mov dx, 0x3f8; mov al, '!'; out dx, al`
const WRITER: [u8; 30] = [
    0xbe, 0x80, 0x7d, 0xb8, 0x00, 0x43, 0xb2, 0x80, 0xcd, 0x13, 0x72, 0x0c, 0x83, 0x06, 0x88, 0x7d,
    0x40, 0x83, 0x16, 0x8a, 0x7d, 0x00, 0xeb, 0xe8, 0xba, 0xf8, 0x03, 0xb0, 0x21, 0xee,
];
/// `hlt; jmp $-1`
const HALT: [u8; 3] = [0xf4, 0xeb, 0xfd];

fn disk(guest: Guest) -> Vec<u8> {
    const TEXT: usize = 0x100;
    let mut code = hello(0x7c00 + u16::try_from(TEXT).unwrap());
    let text = if matches!(guest, Guest::Counts) { "00000000\n" } else { HELLO };
    match guest {
        Guest::Deaf => {}
        Guest::Polite => code.extend(BUTTON.iter().chain(&OFF)),
        Guest::Short => code.extend(OFF),
        Guest::Echo => code.extend(ECHO),
        Guest::Counts => code.extend(COUNT),
        Guest::Writer => code.extend(WRITER),
    }
    code.extend(HALT);
    assert!(code.len() < TEXT);
    // SeaBIOS does not read a disk of a single sector.
    let mut disk = vec![0; 1 << 20];
    disk[..code.len()].copy_from_slice(&code);
    disk[TEXT..TEXT + text.len()].copy_from_slice(text.as_bytes());
    let (at, request) = REQUEST;
    disk[at..at + request.len()].copy_from_slice(&request);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// What the doctor of a sound node says of its storage.
fn sound() -> Vec<Check> {
    let check = |name: &str| {
        let check =
            serde_json::json!({ "name": name, "status": "PASS", "detail": "as it should be" });
        serde_json::from_value(check).unwrap()
    };
    vec![check("store"), check("images")]
}

/// A node: this machine's programs, processors and memory, and no `/dev`, hence no KVM.
pub struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    pub fn new() -> Self {
        // Not below /tmp: a VM has one of its own.
        let dir = tempfile::tempdir_in("/var/lib").unwrap();
        // The users of machines pass through it, as they do through /var/lib.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(dir.path().join("images")).unwrap();
        fs::create_dir_all(root.join("sbin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_mesh-agent"), root.join("sbin/mesh-agent")).unwrap();
        for folder in ["proc", "sys", "usr"] {
            symlink(format!("/{folder}"), root.join(folder)).unwrap();
        }
        Node { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn run_folder(&self) -> PathBuf {
        self.dir.path().join("vms")
    }

    /// Number of VMs with files. The next user ID is a file beside them.
    pub fn vm_folders(&self) -> usize {
        let entries = fs::read_dir(self.run_folder()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
    }

    pub fn files(&self, uuid: SystemUuid) -> PathBuf {
        self.run_folder().join(uuid.to_string())
    }

    fn places(&self) -> HostConfig {
        HostConfig {
            root: self.dir.path().join("root"),
            central: Some([10, 77, 0, 1].into()),
            vms_dir: self.run_folder(),
            volumes_dir: self.dir.path().join("images"),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            models: CpuModels::default(),
            checks: CheckRunner::new(sound),
        }
    }

    /// An agent of this node.
    pub fn agent(&self) -> Vms {
        Vms::open(self.places())
    }

    /// An agent's desk of this node.
    pub fn manager(&self) -> VmManager {
        VmManager::open(self.places())
    }

    /// Puts a guest's disk where volumes lie, as qcow2, and names it.
    pub fn image(&self, guest: Guest) -> Digest {
        let raw = self.dir.path().join("disk.raw");
        let image = self.dir.path().join("disk.qcow2");
        fs::write(&raw, disk(guest)).unwrap();
        let made = Command::new("qemu-img")
            .args(["convert", "-f", "raw", "-O", "qcow2"])
            .arg(raw)
            .arg(&image)
            .status();
        assert!(made.unwrap().success());
        let digest = Digest::of(&fs::read(&image).unwrap());
        fs::rename(image, self.dir.path().join("images").join(digest.to_string())).unwrap();
        digest
    }

    /// A machine that boots a guest; `more` is laid over it.
    pub fn spec(&self, guest: Guest, more: serde_json::Value) -> VmSpec {
        let mut spec = serde_json::json!({
            "name": "one", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "64M",
            "allow_tcg": true,
            "volumes": [{ "name": "root", "format": "qcow2", "digest": self.image(guest) }],
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    /// Process IDs of the QEMUs that have anything below this node's folder on their command line.
    pub fn processes(&self) -> Vec<i32> {
        let ours = self.dir.path().display().to_string();
        let has = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&ours)
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has).collect()
    }
}

impl Drop for Node {
    /// A test that failed leaves nothing behind either.
    fn drop(&mut self) {
        for pid in self.processes() {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Waits until a machine stands so.
pub async fn reaches(reports: &mut watch::Receiver<VmReport>, state: ReportedVmState) -> VmReport {
    let waited = timeout(DEADLINE, reports.wait_for(|report| report.state == state)).await;
    let seen = waited.map(|report| report.unwrap().clone());
    seen.unwrap_or_else(|_| panic!("it is not {}: {:?}", state.as_str(), reports.borrow()))
}

/// Waits until the guest has written a text, kept or new.
pub async fn says(vms: &Vms, uuid: SystemUuid, text: &str) -> String {
    let mut listening = vms.console(uuid).unwrap().subscribe();
    let mut received = listening.before;
    let waited = timeout(DEADLINE, async {
        while !String::from_utf8_lossy(&received).contains(text) {
            match listening.new.next().await {
                ConsoleEvent::Bytes(bytes) => received.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
    });
    let is_said = waited.await.is_ok();
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(is_said, "`{text}` was not said: {received}");
    received
}
