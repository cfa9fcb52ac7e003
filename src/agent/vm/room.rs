//! How much more fits into a folder. On a diskless node files lie in memory, and what is left there bounds them, whatever the file
//! system says of itself.

use crate::agent::facts::{self, Tree};
use std::{io, path::Path};

/// What is left free of a disk, in bytes.
const DISK_RESERVE: u64 = 64 << 20;
/// What is left free of memory, in bytes: kernel, agent and QEMU's own.
const MEMORY_RESERVE: u64 = 256 << 20;
/// File systems that lie in memory: tmpfs and ramfs (statfs(2)).
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Bytes that may still be written below `folder`, which exists. Memory is read below `root`.
///
/// # Errors
/// When the file system does not say.
pub fn room(folder: &Path, root: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(folder)?;
    let kind = rustix::fs::statfs(folder)?.f_type;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    // 32 bits, in a field that is wider here and signed there.
    if !u32::try_from(kind & 0xffff_ffff).is_ok_and(|kind| IN_MEMORY.contains(&kind)) {
        return Ok(free.saturating_sub(DISK_RESERVE));
    }
    let available = facts::memory(&Tree::new(root)).available_kib.saturating_mul(1024);
    Ok(free.min(available.saturating_sub(MEMORY_RESERVE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_memory_is_bounded_by_it() {
        let (root, disk) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        std::fs::create_dir(root.path().join("proc")).expect("made");
        let meminfo = |kib: u64| {
            let text = format!("MemTotal: 9999999 kB\nMemAvailable: {kib} kB\n");
            std::fs::write(root.path().join("proc/meminfo"), text).expect("written");
        };
        meminfo(300 * 1024);
        let memory = room(Path::new("/dev/shm"), root.path()).expect("Linux has it");
        assert!(memory <= 44 << 20, "{memory}");
        meminfo(100);
        assert_eq!(room(Path::new("/dev/shm"), root.path()).expect("Linux has it"), 0);
        assert!(room(&disk.path().join("nowhere"), root.path()).is_err());
    }
}
