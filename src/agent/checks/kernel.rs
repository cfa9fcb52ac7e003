//! Searches the kernel log for errors since the boot.

use crate::system::Tree;
use rustix::fs::OFlags;
use std::{fs::OpenOptions, io::Read as _, os::unix::fs::OpenOptionsExt as _};

/// Maximum bytes of the log; the kernel's buffer has a few hundred kilobytes.
const MAX_LOG: usize = 4 * 1024 * 1024;
/// Maximum bytes of a record; each read returns one.
const RECORD: usize = 8192;

/// Returns the first line of the kernel log that contains one of these texts, ignoring case;
/// without number and time.
pub fn find_line(tree: &Tree, texts: &[&str]) -> Option<String> {
    let log = read_log(tree);
    let found = log.lines().find(|line| {
        let line = line.to_ascii_lowercase();
        texts.iter().any(|text| line.contains(text))
    })?;
    Some(found.split_once(';').map_or(found, |(_, text)| text).trim().to_owned())
}

fn read_log(tree: &Tree) -> String {
    // Without this flag the read would wait for the next record.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(tree.path("/dev/kmsg"));
    let Ok(mut file) = file else { return String::new() };
    let mut log = Vec::new();
    let mut record = [0; RECORD];
    let mut overruns = 0;
    while log.len() < MAX_LOG {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => log.extend_from_slice(&record[..length]),
            // The kernel overwrote older records: the next read continues behind them.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe && overruns < 100 => {
                overruns += 1
            }
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&log).into_owned()
}
