//! A guest of one boot sector, and the operator at its console.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// From an order to a guest that speaks, on a node that is emulated.
pub const DEADLINE: Duration = Duration::from_secs(240);
pub const HELLO: &str = "hello from the guest";
/// The guest writes this if it finds the device on its PCI buses.
pub const SEEN: &str = " with 1002:5046";

/// Real-mode code that writes a text to COM1; see tests/it/work/vms/guest.rs.
fn say(text_at: u16) -> Vec<u8> {
    let [low, high] = text_at.to_le_bytes();
    let mut code = vec![0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xbe, low, high];
    code.extend([
        0xac, 0x84, 0xc0, 0x74, 0x12, 0x88, 0xc3, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb,
    ]);
    code.extend([0x88, 0xd8, 0xba, 0xf8, 0x03, 0xee, 0xeb, 0xe9]);
    code
}

/// Looks at the first function of each device of each bus, and passes over the next text where none
/// is 1002:5046:
/// `mov ecx, 0x80000000; next: mov eax, ecx; mov dx, 0xcf8; out dx, eax; mov dx, 0xcfc; in eax, dx; cmp eax, 0x50461002; je found; add ecx, 0x800; cmp ecx, 0x81000000; jb next; jmp behind; found:`
const SCAN: [u8; 45] = [
    0x66, 0xb9, 0, 0, 0, 0x80, 0x66, 0x89, 0xc8, 0xba, 0xf8, 0x0c, 0x66, 0xef, 0xba, 0xfc, 0x0c,
    0x66, 0xed, 0x66, 0x3d, 0x02, 0x10, 0x46, 0x50, 0x74, 0x12, 0x66, 0x81, 0xc1, 0, 0x08, 0, 0,
    0x66, 0x81, 0xf9, 0, 0, 0, 0x81, 0x72, 0xdb, 0xeb, 0x1f,
];
/// `wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; inc al; out dx, al; jmp wait`
const ECHO: [u8; 17] = [
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf8, 0xba, 0xf8, 0x03, 0xec, 0xfe, 0xc0, 0xee, 0xeb,
    0xef,
];

/// A guest of one boot sector, as qcow2.
pub fn image(dir: &Path) -> PathBuf {
    let code = [say(0x7d00), SCAN.to_vec(), say(0x7d40), ECHO.to_vec()].concat();
    let mut disk = vec![0; 1 << 20];
    for (at, bytes) in [
        (0, code.as_slice()),
        (0x100, HELLO.as_bytes()),
        (0x140, SEEN.as_bytes()),
        (510, &[0x55, 0xaa]),
    ] {
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let raw = dir.join("guest.raw");
    let image = dir.join("e2e-guest.qcow2");
    fs::write(&raw, disk).expect("written");
    let made = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .arg(&raw)
        .arg(&image)
        .status();
    assert!(made.expect("qemu-img").success());
    image
}

/// An operator at the console of VM `one`.
pub struct Operator {
    child: Child,
    received: Arc<Mutex<String>>,
}

impl Operator {
    pub fn attach(site: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--site").arg(site).args(["vm", "console", "one"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut shown = child.stdout.take().expect("piped");
        let received = Arc::<Mutex<String>>::default();
        let expect_text = received.clone();
        thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(length @ 1..) = shown.read(&mut bytes) {
                expect_text
                    .lock()
                    .expect("whole")
                    .push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Operator { child, received }
    }

    pub fn types(&mut self, key: u8) {
        self.child.stdin.as_mut().expect("piped").write_all(&[key]).expect("it listens");
    }

    pub fn expect_text(&self, text: &str) {
        let end = Instant::now() + DEADLINE;
        while !self.received.lock().expect("whole").contains(text) {
            assert!(
                Instant::now() < end,
                "no `{text}` in {:?}",
                self.received.lock().expect("whole")
            );
            thread::park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
