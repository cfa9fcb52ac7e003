//! Messages on the console and in the kernel's log, from where the journal of the OS reads them.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{self, Write as _},
    sync::OnceLock,
};

/// Name of this program in messages.
static NAME: OnceLock<&str> = OnceLock::new();

/// Sets the name of this program in messages, once.
pub fn set_name(name: &'static str) {
    let _ = NAME.set(name);
}

fn line(text: impl Display) -> String {
    format!("{}: {text}\n", NAME.get().unwrap_or(&"stage1"))
}

/// Writes a message to console and kernel log. A console that cannot be written is no reason to
/// stop a boot.
pub fn message(text: impl Display) {
    let line = line(text);
    let _ = io::stdout().write_all(line.as_bytes());
    if let Ok(mut log) = OpenOptions::new().write(true).open("/dev/kmsg") {
        let _ = log.write_all(format!("<6>{line}").as_bytes());
    }
}

/// Writes a progress line to the console only.
pub fn progress(text: impl Display) {
    let _ = io::stdout().write_all(line(text).as_bytes());
}
