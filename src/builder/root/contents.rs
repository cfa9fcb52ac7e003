//! The store of contents: each file of a source is a file with a number in one folder, until the
//! tree is complete.

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Size of the pieces in which files are copied, in bytes. A piece of zeros becomes a hole.
const PIECE: usize = 64 << 10;
/// Unit of the blocks of a file (stat(2)), in bytes.
const BLOCK: u64 = 512;
/// Maximum size of a content that is read into memory, in bytes.
const MAX_READ: u64 = 256 << 20;

/// Bytes of a file that are no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

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
    pub(super) fn add(&mut self, size: u64, content: impl Read) -> io::Result<u64> {
        self.add_sparse(size, &[Segment { offset: 0, length: size }], content)
    }

    /// Stores the content of a file with holes: `content` has the segments only. Returns its
    /// number.
    pub(super) fn add_sparse(
        &mut self,
        size: u64,
        segments: &[Segment],
        mut content: impl Read,
    ) -> io::Result<u64> {
        let number = self.next;
        self.next += 1;
        let mut file = File::create_new(self.path(number))?;
        let mut piece = vec![0; PIECE];
        for segment in segments {
            file.seek(SeekFrom::Start(segment.offset))?;
            let mut rest = segment.length;
            while rest > 0 {
                let length = usize::try_from(rest).map_or(PIECE, |rest| rest.min(PIECE));
                content.read_exact(&mut piece[..length])?;
                if is_zero(&piece[..length]) {
                    file.seek(SeekFrom::Current(i64::try_from(length).unwrap_or(0)))?;
                } else {
                    file.write_all(&piece[..length])?;
                }
                rest -= length as u64;
            }
        }
        file.set_len(size)?;
        Ok(number)
    }

    /// Returns the segments of a content with holes, and an empty one at its end; `None` if it has
    /// none. They follow from its bytes alone.
    pub(super) fn segments(&self, number: u64) -> io::Result<Option<Vec<Segment>>> {
        let mut file = File::open(self.path(number))?;
        let meta = file.metadata()?;
        let size = meta.len();
        // A file that occupies all of its blocks has no piece of zeros: see `add_sparse`.
        if meta.blocks() * BLOCK >= size {
            return Ok(None);
        }
        let mut piece = vec![0; PIECE];
        let mut segments: Vec<Segment> = Vec::new();
        let mut offset = 0;
        while offset < size {
            let length = PIECE.min(usize::try_from(size - offset).unwrap_or(PIECE));
            file.read_exact(&mut piece[..length])?;
            let next = Segment { offset, length: length as u64 };
            offset += next.length;
            match segments.last_mut() {
                _ if is_zero(&piece[..length]) => {}
                Some(last) if last.offset + last.length == next.offset => {
                    last.length += next.length
                }
                _ => segments.push(next),
            }
        }
        if segments == [Segment { offset: 0, length: size }] {
            return Ok(None);
        }
        segments.push(Segment { offset: size, length: 0 });
        Ok(Some(segments))
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

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
