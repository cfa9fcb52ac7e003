//! Free space of the store. On a diskless node the store is in memory, so free memory limits it.

use crate::system::Tree;
use meshd_proto::{STORE_STEP, StoreFacts, StoreKind};
use rustix::{
    fs::{StatFs, statfs},
    mount::{MountFlags, mount_remount},
};
use std::{io, path::Path};

/// Bytes of a disk that stay free.
const DISK_RESERVE: u64 = 64 << 20;
/// File systems in memory, or possibly on one: tmpfs, ramfs, overlayfs (statfs(2)).
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x794c_7630];

/// Name of the tmpfs that the overlay `kvm-host` mounts for VMs on a diskless node.
const OWN_STORE: &str = "mesh-machines";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub kind: StoreKind,
    /// Size in bytes; 0 if unlimited.
    pub bytes: u64,
    pub used: u64,
    pub free: u64,
}

/// Reads the file system of a folder, or of its nearest existing parent.
pub fn space(folder: &Path) -> io::Result<Space> {
    let existing =
        folder.ancestors().find(|folder| folder.exists()).ok_or(io::ErrorKind::NotFound)?;
    let StatFs { f_type, f_blocks, f_bfree, f_bavail, f_bsize, .. } = statfs(existing)?;
    // The magic number has 32 bits in a wider field.
    let is_memory = u32::try_from(f_type & 0xffff_ffff).is_ok_and(|kind| IN_MEMORY.contains(&kind));
    let block = u64::try_from(f_bsize).unwrap_or(0);
    let bytes = |blocks: u64| blocks.saturating_mul(block);
    Ok(Space {
        kind: if is_memory { StoreKind::Memory } else { StoreKind::Disk },
        bytes: bytes(f_blocks),
        used: bytes(f_blocks.saturating_sub(f_bfree)),
        free: bytes(f_bavail),
    })
}

pub fn is_in_memory(folder: &Path) -> bool {
    space(folder).is_ok_and(|space| space.kind == StoreKind::Memory)
}

pub fn store(folder: &Path) -> Option<StoreFacts> {
    let Space { kind, bytes, used, .. } = space(folder).ok()?;
    Some(StoreFacts { kind, bytes, used: used.div_ceil(STORE_STEP).saturating_mul(STORE_STEP) })
}

/// Returns the bytes that may still be written below `folder`. `memory` is the free memory.
pub fn writable_bytes(folder: &Path, memory: u64) -> io::Result<u64> {
    let space = space(folder)?;
    Ok(match space.kind {
        StoreKind::Disk => space.free.saturating_sub(DISK_RESERVE),
        // ramfs is unlimited.
        StoreKind::Memory if space.bytes == 0 => memory,
        StoreKind::Memory => space.free.min(memory),
    })
}

/// Limits the tmpfs for VMs ([`OWN_STORE`]), so that QEMU pauses guests that write too much before
/// they use the memory of others. Never sets a limit below the current use. Leaves any other file
/// system unchanged.
pub fn limit_store(folder: &Path, root: &Tree, bytes: u64) -> io::Result<()> {
    let mounts = root.read("/proc/self/mountinfo").unwrap_or_default();
    if !mounts.lines().any(|line| is_own(line, folder)) || bytes < space(folder)?.used {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Whole pages; 0 would mean unlimited.
    let size = format!("size={}k", (bytes >> 12 << 2).max(4));
    Ok(mount_remount(folder, flags, size)?)
}

/// Returns whether a line of mountinfo is the tmpfs for VMs at `folder`:
/// `36 35 0:30 / /var/lib/machines rw,nosuid - tmpfs mesh-machines rw,size=..`.
fn is_own(line: &str, folder: &Path) -> bool {
    let Some((mount, kind)) = line.split_once(" - ") else { return false };
    let is_mount_point = mount.split(' ').nth(4).is_some_and(|path| Path::new(path) == folder);
    is_mount_point && kind.starts_with(&format!("tmpfs {OWN_STORE} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_store_is_the_named_tmpfs_at_its_path() {
        let script =
            include_str!("../../../../overlays/kvm-host/rootfs/usr/libexec/meshd/kvm-host");
        assert!(
            script.contains("machines=/var/lib/machines\n")
                && script.contains(&format!(" {OWN_STORE} \"$machines\"")),
            "the overlay mounts the tmpfs under another name"
        );
        let own = Path::new("/var/lib/machines");
        let line = |path: &str, kind: &str, name: &str| {
            format!("36 35 0:30 / {path} rw,nosuid - {kind} {name} rw,size=4k")
        };
        assert!(is_own(&line("/var/lib/machines", "tmpfs", OWN_STORE), own));
        assert!(!is_own(&line("/var/lib", "tmpfs", OWN_STORE), own));
        assert!(!is_own(&line("/var/lib/machines", "tmpfs", "tmpfs"), own));
        assert!(!is_own(&line("/var/lib/machines", "ext4", OWN_STORE), own));
        assert!(!is_own("junk", own));
    }

    #[test]
    fn free_memory_limits_a_store_in_memory_only() {
        let shm = Path::new("/dev/shm");
        let memory = space(&shm.join("not/there")).expect("Linux has /dev/shm");
        assert_eq!(memory.kind, StoreKind::Memory);
        assert_eq!(writable_bytes(shm, 4096).expect("statfs"), 4096.min(memory.free));
        assert_eq!(
            writable_bytes(shm, u64::MAX).expect("statfs") >> 30,
            space(shm).expect("statfs").free >> 30
        );
        let proc = writable_bytes(Path::new("/proc"), u64::MAX).expect("statfs");
        assert_eq!((space(Path::new("/proc")).expect("statfs").kind, proc), (StoreKind::Disk, 0));
        let facts = store(shm).expect("facts");
        assert_eq!((facts.kind, facts.used % STORE_STEP), (StoreKind::Memory, 0));
    }
}
