//! Output of a program: the newest part of it, in a file that grows while its beginning is freed. A
//! file offset is an offset in the whole output, so readers lose nothing that is stored.

use crate::vm::CONSOLE_SCROLLBACK;
use rustix::fs::{FallocateFlags, fallocate};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Holes start and end at page boundaries, in bytes.
const PAGE: u64 = 4096;

pub(super) struct OutputLog {
    file: File,
    length: u64,
    /// Bytes before this offset are freed.
    freed: u64,
}

impl OutputLog {
    /// Opens the log and continues it: it has the output of all starts.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        Ok(OutputLog { file, length, freed: 0 })
    }

    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        if self.length - self.freed >= 2 * CONSOLE_SCROLLBACK {
            let end = (self.length - CONSOLE_SCROLLBACK) / PAGE * PAGE;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, 0, end)?;
            self.freed = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt as _};

    #[test]
    fn log_has_the_newest_output_in_bounded_space() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let path = dir.path().join("log");
        for start in 0..2 {
            let mut log = OutputLog::open(&path).expect("opened");
            for line in 0..40_000 {
                log.append(format!("start {start} line {line:08}\n").as_bytes()).expect("written");
            }
        }
        let found = fs::metadata(&path).expect("there");
        assert_eq!(found.len(), 2 * 40_000 * "start 0 line 00000000\n".len() as u64);
        // Blocks of 512 bytes.
        assert!(found.blocks() * 512 <= 2 * CONSOLE_SCROLLBACK + 2 * PAGE, "{}", found.blocks());
        let text = fs::read(&path).expect("read");
        assert!(text.ends_with(b"start 1 line 00039999\n"));
        let kept = text.iter().filter(|byte| **byte != 0).count() as u64;
        assert!(kept >= CONSOLE_SCROLLBACK, "{kept}");
    }
}
