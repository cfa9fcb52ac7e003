//! Messages on the console and in the kernel's log, from where the journal of the OS reads them.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{self, Write as _},
};

/// Writes a message to console and kernel log. A console that cannot be written is no reason to
/// stop a boot.
pub fn message(text: impl Display) {
    let line = format!("stage1: {text}\n");
    let _ = io::stdout().write_all(line.as_bytes());
    if let Ok(mut log) = OpenOptions::new().write(true).open("/dev/kmsg") {
        let _ = log.write_all(format!("<6>{line}").as_bytes());
    }
}

/// Writes a progress line to the console only.
pub fn progress(text: impl Display) {
    let _ = io::stdout().write_all(format!("stage1: {text}\n").as_bytes());
}
