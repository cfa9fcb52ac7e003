//! The store of contents: each file of a source is a file with a number in one folder, until the
//! tree is complete.

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

/// Size of the pieces in which files are copied, in bytes. A piece of zeros becomes a hole.
const PIECE: usize = 64 << 10;
/// Maximum size of a content that is read into memory, in bytes.
const MAX_READ: u64 = 256 << 20;

pub(super) struct ContentStore {
    folder: PathBuf,
    next: u64,
}

impl ContentStore {
    /// Creates a store in an empty folder.
    pub(super) fn new(folder: PathBuf) -> Self {
        ContentStore { folder, next: 0 }
    }

    /// Stores the content of a file, and returns its number.
    pub(super) fn add(&mut self, size: u64, mut content: impl Read) -> io::Result<u64> {
        let number = self.next;
        self.next += 1;
        let mut file = File::create_new(self.path(number))?;
        let mut piece = vec![0; PIECE];
        let mut rest = size;
        while rest > 0 {
            let length = usize::try_from(rest).map_or(PIECE, |rest| rest.min(PIECE));
            content.read_exact(&mut piece[..length])?;
            if piece[..length].iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(i64::try_from(length).unwrap_or(0)))?;
            } else {
                file.write_all(&piece[..length])?;
            }
            rest -= length as u64;
        }
        file.set_len(size)?;
        Ok(number)
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// Reads a whole content.
    ///
    /// # Errors
    /// It cannot be read, or is larger than any kernel or list of packages.
    pub(super) fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        meshd_config::files::read_regular(&self.path(number), MAX_READ)
    }

    pub(super) fn copy(&self, number: u64, to: &Path) -> io::Result<()> {
        fs::copy(self.path(number), to).map(drop)
    }
}
