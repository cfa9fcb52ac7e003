//! `meshd vm console`, with keys that come by a pipe.

use crate::world::{World, eventually};
use std::{
    io::{Read as _, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

/// Bytes at the end of the output that a failed test shows.
const SHOWN: usize = 400;

/// An open console; closed when it is dropped.
pub struct Console {
    child: Child,
    keys: ChildStdin,
    received: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Console {
    pub fn open(world: &World, name: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--site").arg(&world.site).args(["vm", "console", name, "--raw"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut shown = child.stdout.take().unwrap();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let writer = received.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = shown.read(&mut bytes) {
                writer.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        });
        Console { child, keys, received, reader: Some(reader) }
    }

    /// Types all of it in one piece.
    pub fn types(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Waits until the output meets a condition; returns it.
    pub fn until(&self, what: &str, is: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        eventually(what, || {
            let received = self.received.lock().unwrap();
            let tail = String::from_utf8_lossy(&received[received.len().saturating_sub(SHOWN)..])
                .into_owned();
            if is(&received) {
                Ok(received.clone())
            } else {
                Err(format!("{} bytes, the last {tail:?}", received.len()))
            }
        })
    }

    /// Waits until the guest has written a text.
    pub fn shows(&self, text: &str) -> String {
        let received =
            self.until(text, |received| String::from_utf8_lossy(received).contains(text));
        String::from_utf8_lossy(&received).into_owned()
    }

    /// Leaves it by `Ctrl-]`.
    pub fn leave(mut self) {
        self.types(b"\x1d");
        let status = eventually("the console is left", || {
            self.child.try_wait().unwrap().ok_or("it runs".to_owned())
        });
        assert!(status.success());
        self.reader.take().unwrap().join().unwrap();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
