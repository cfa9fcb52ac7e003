//! Programs of others that run beside meshd: DHCP clients, servers and relays.

use super::{World, eventually};
use meshd_lab::Namespace;
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A program of somebody else in a namespace, with what it says; ends when it is dropped.
pub struct Program {
    name: &'static str,
    child: Child,
    output: PathBuf,
}

impl Program {
    pub fn start(world: &World, inside: &Namespace, name: &'static str, args: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let output = world.path(&format!("{name}-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let log = fs::File::create(&output).unwrap();
        let mut command = Command::new(name);
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = inside.spawn(&mut command).unwrap();
        Program { name, child, output }
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until it has said a text so many times; gives the word behind the last one.
    pub fn says(&self, text: &str, times: usize) -> String {
        eventually(&format!("{} says `{text}`", self.name), || {
            let log_text = self.log_text();
            let last = log_text.match_indices(text).nth(times - 1);
            let word =
                last.and_then(|(at, _)| log_text[at + text.len()..].split_whitespace().next());
            word.map(|word| word.trim_end_matches(',').to_owned()).ok_or(log_text.clone())
        })
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {} said\n{}", self.name, self.log_text());
        }
    }
}
