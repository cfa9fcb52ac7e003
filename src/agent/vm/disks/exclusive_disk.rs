//! A disk opened exclusively (open(2), O_EXCL on a block device): nobody mounts it or opens it exclusively. Verifies that the kernel name
//! still belongs to the intended disk.

use crate::{disks, system::Tree};
use meshd_proto::DiskFacts;
use rustix::{
    fs::{Advice, FallocateFlags, FileType, OFlags, fadvise, fallocate, fstat, major, minor},
    io::Errno,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Seek as _, SeekFrom},
    num::NonZeroU64,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    sync::atomic::{AtomicBool, Ordering},
};

/// Bytes that are zeroed at once; a wipe can be cancelled between two chunks.
const CHUNK: u64 = 64 << 20;
/// Number and size of the samples that are read after a wipe, from start to end of the disk.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 64 * 1024;

/// A disk that is open exclusively while this value lives.
#[derive(Debug)]
pub struct ExclusiveDisk {
    file: File,
    bytes: u64,
}

impl ExclusiveDisk {
    /// Opens a disk of a recent survey.
    ///
    /// # Errors
    /// The disk is in use, or its kernel name belongs to another disk now.
    pub fn hold(tree: &Tree, disk: &DiskFacts) -> Result<Self, String> {
        let path = tree.path(&format!("/dev/{}", disk.name));
        let alone = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(alone).open(&path);
        let mut file = opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::BUSY) => format!("{} is mounted, or part of something else", path.display()),
            _ => format!("{} cannot be opened: {error}", path.display()),
        })?;
        let status = fstat(&file).map_err(|error| format!("{}: {error}", path.display()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::BlockDevice {
            return Err(format!("{} is no block device", path.display()));
        }
        let number = format!("{}:{}", major(status.st_rdev), minor(status.st_rdev));
        let known = tree.read(&format!("/sys/block/{}/dev", disk.name));
        // While the device is open, its kernel name does not change.
        if known.as_deref() != Some(&number) || !disks::is_unchanged(tree, disk) {
            return Err(format!("{} is another disk than a moment ago", path.display()));
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(ExclusiveDisk { file, bytes })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a path by which a child process opens this very disk.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Flushes all writes.
    ///
    /// # Errors
    /// A write failed.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Discards the disk if it then reads as zero; returns false if it cannot. Blocks.
    pub fn zero_at_once(&self, is_over: &AtomicBool) -> bool {
        self.each(FallocateFlags::PUNCH_HOLE, is_over).is_ok()
    }

    /// Discards or zeroes the disk, then verifies samples. Blocks, for hours on a large hard disk.
    ///
    /// # Errors
    /// A write fails, a sample is not zero, or `is_over` is set.
    pub fn wipe(&self, is_over: &AtomicBool) -> Result<(), String> {
        let wiped = match self.each(FallocateFlags::PUNCH_HOLE, is_over) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => self.each(FallocateFlags::ZERO_RANGE, is_over),
            done => done,
        };
        wiped.map_err(|error| format!("it cannot be wiped: {error}"))?;
        self.sync().map_err(|error| format!("it cannot be wiped: {error}"))?;
        match self.first_remains() {
            Ok(None) => Ok(()),
            Ok(Some(at)) => Err(format!("it was wiped, and does not read as zero at byte {at}")),
            Err(error) => Err(format!("it was wiped, and cannot be read: {error}")),
        }
    }

    fn each(&self, how: FallocateFlags, is_over: &AtomicBool) -> Result<(), Errno> {
        let mut at = 0;
        while at < self.bytes {
            if is_over.load(Ordering::Relaxed) {
                return Err(Errno::CANCELED);
            }
            let length = CHUNK.min(self.bytes - at);
            match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, at, length) {
                Err(Errno::INTR) => continue,
                done => done?,
            }
            at += length;
        }
        Ok(())
    }

    /// Returns the offset of the first sample that is not zero.
    fn first_remains(&self) -> io::Result<Option<u64>> {
        // Drop the page cache, so that samples come from the disk.
        fadvise(&self.file, 0, None::<NonZeroU64>, Advice::DontNeed)?;
        let mut piece = vec![0; SAMPLE.min(usize::try_from(self.bytes).unwrap_or(SAMPLE))];
        let last = self.bytes - piece.len() as u64;
        for number in 0..SAMPLES {
            let at = u64::try_from(u128::from(last) * u128::from(number) / u128::from(SAMPLES - 1)).unwrap_or(last);
            self.file.read_exact_at(&mut piece, at)?;
            if piece.iter().any(|byte| *byte != 0) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}
