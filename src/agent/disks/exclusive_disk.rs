//! A disk opened with O_EXCL (open(2)), so that it can be neither mounted nor opened exclusively by
//! others. Verifies that the kernel name still belongs to the intended disk.

use super::is_unchanged;
use crate::system::Tree;
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
};
use tokio_util::sync::CancellationToken;

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
    /// Opens a disk of a recent survey. Fails if the disk is in use, or if its kernel name belongs
    /// to another disk now.
    pub fn open(tree: &Tree, disk: &DiskFacts) -> Result<Self, String> {
        let path = tree.path(&format!("/dev/{}", disk.name));
        let exclusive = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(&path);
        let mut file =
            opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::BUSY) => {
                    format!("{} is mounted, or part of another device", path.display())
                }
                _ => format!("cannot open {}: {error}", path.display()),
            })?;
        let status = fstat(&file).map_err(|error| format!("{}: {error}", path.display()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::BlockDevice {
            return Err(format!("{} is not a block device", path.display()));
        }
        let number = format!("{}:{}", major(status.st_rdev), minor(status.st_rdev));
        let surveyed = tree.read(&format!("/sys/block/{}/dev", disk.name));
        // While the device is open, its kernel name does not change.
        if surveyed.as_deref() != Some(&number) || !is_unchanged(tree, disk) {
            return Err(format!("{} is a different disk now", path.display()));
        }
        let bytes =
            file.seek(SeekFrom::End(0)).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(ExclusiveDisk { file, bytes })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a path with which a child process opens this disk.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Discards the disk. Returns whether the disk then reads as zero. Blocks.
    pub fn discard(&self, cancelled: &CancellationToken) -> bool {
        self.fallocate(FallocateFlags::PUNCH_HOLE, cancelled).is_ok()
    }

    /// Discards or zeroes the disk, then verifies samples. Blocks, for hours on a large hard disk.
    pub fn wipe(&self, cancelled: &CancellationToken) -> Result<(), String> {
        let zeroed = match self.fallocate(FallocateFlags::PUNCH_HOLE, cancelled) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                self.fallocate(FallocateFlags::ZERO_RANGE, cancelled)
            }
            result => result,
        };
        zeroed
            .map_err(io::Error::from)
            .and_then(|()| self.sync())
            .map_err(|error| error.to_string())?;
        match self.first_nonzero_sample() {
            Ok(None) => Ok(()),
            Ok(Some(offset)) => Err(format!("byte {offset} is not zero after the wipe")),
            Err(error) => Err(format!("cannot read the wiped disk: {error}")),
        }
    }

    fn fallocate(&self, mode: FallocateFlags, cancelled: &CancellationToken) -> Result<(), Errno> {
        let mut offset = 0;
        while offset < self.bytes {
            if cancelled.is_cancelled() {
                return Err(Errno::CANCELED);
            }
            let length = CHUNK.min(self.bytes - offset);
            match fallocate(&self.file, mode | FallocateFlags::KEEP_SIZE, offset, length) {
                Err(Errno::INTR) => continue,
                result => result?,
            }
            offset += length;
        }
        Ok(())
    }

    fn first_nonzero_sample(&self) -> io::Result<Option<u64>> {
        // Drop the page cache, so that samples come from the disk.
        fadvise(&self.file, 0, None::<NonZeroU64>, Advice::DontNeed)?;
        let mut sample = vec![0; SAMPLE.min(usize::try_from(self.bytes).unwrap_or(SAMPLE))];
        let last = self.bytes - sample.len() as u64;
        for number in 0..SAMPLES {
            let offset =
                u64::try_from(u128::from(last) * u128::from(number) / u128::from(SAMPLES - 1))
                    .unwrap_or(last);
            self.file.read_exact_at(&mut sample, offset)?;
            if sample.iter().any(|byte| *byte != 0) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }
}
