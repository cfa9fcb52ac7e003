//! Memory that is free for VMs and their files. Reserved memory counts as used before guests touch
//! it or layers grow into it (ADR 28).

use super::capacity;
use crate::{
    system::{self, Tree},
    vm::vm_paths::{self, VmPaths},
};
use meshd_proto::vm::{NODE_RESERVE, VmSpec, layer_growth, qcow2};
use meshd_types::SystemUuid;
use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::Path};

/// Block size of file metadata (stat(2)).
const BLOCK: u64 = 512;

/// Memory of a node in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub available: u64,
    /// Huge pages, used or not (`Hugetlb`).
    pub huge: u64,
    /// Files in memory: volumes, layers, the system (`Shmem`).
    pub files: u64,
    /// Resident memory of QEMU, by VM.
    pub touched: BTreeMap<SystemUuid, u64>,
    /// Expected growth of the layers, by VM; empty if the store is on a disk.
    pub growth: BTreeMap<SystemUuid, u64>,
}

impl Memory {
    /// Returns the bytes that are free beside the memory reserved for these VMs.
    pub fn free_beside<'a>(&self, reserved: impl IntoIterator<Item = &'a VmSpec>) -> u64 {
        let mut all = 0u64;
        let mut untouched = 0u64;
        let mut growth = NODE_RESERVE;
        for spec in reserved {
            let own = spec.node_memory();
            let touched = self.touched.get(&spec.uuid).copied().unwrap_or(0);
            all = all.saturating_add(own);
            untouched = untouched.saturating_add(own.saturating_sub(touched));
            growth = growth.saturating_add(self.growth.get(&spec.uuid).copied().unwrap_or(0));
        }
        // The lesser of two: total minus reserved memory, and `MemAvailable`, because other
        // processes use memory too.
        let used = [self.huge, self.files, all, growth].into_iter().fold(0, u64::saturating_add);
        self.total
            .saturating_sub(used)
            .min(self.available.saturating_sub(untouched.saturating_add(growth)))
    }
}

/// Returns the bytes that VMs and their files in memory use.
pub fn used_memory(tree: &Tree, machines: &Path) -> u64 {
    let files = if capacity::is_in_memory(machines) { files(machines) } else { 0 };
    read(tree, machines).touched.into_values().fold(files, u64::saturating_add)
}

/// Reads the memory of the node. `machines` is the folder of all VMs.
pub fn read(tree: &Tree, machines: &Path) -> Memory {
    let field = |name| system::memory_field(tree, name).saturating_mul(1024);
    let mut memory = Memory {
        total: field("MemTotal"),
        available: field("MemAvailable"),
        huge: field("Hugetlb"),
        files: field("Shmem"),
        ..Memory::default()
    };
    let in_memory = capacity::is_in_memory(machines);
    for uuid in vm_paths::all(machines) {
        let files = VmPaths::new(machines, uuid);
        memory.touched.extend(touched_memory(tree, &files).map(|bytes| (uuid, bytes)));
        let layers = files.layers();
        if in_memory && !layers.is_empty() {
            let growth =
                layers.iter().filter_map(|layer| growth(layer)).fold(0, u64::saturating_add);
            memory.growth.insert(uuid, growth);
        }
    }
    memory
}

/// Returns the resident memory of the QEMU of a VM.
fn touched_memory(tree: &Tree, files: &VmPaths) -> Option<u64> {
    let pid: u32 = fs::read_to_string(files.pid()).ok()?.trim().parse().ok()?;
    // The process ID may have been reused.
    let line = tree.read(&format!("/proc/{pid}/cmdline"))?;
    let own = files.pid().display().to_string();
    line.split('\0').any(|arg| arg == own).then_some(())?;
    resident(tree, pid)
}

/// Returns the anonymous resident memory of a process.
pub fn resident(tree: &Tree, pid: u32) -> Option<u64> {
    let status = tree.read(&format!("/proc/{pid}/status"))?;
    let rest = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = rest.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Returns the expected growth of a layer.
fn growth(layer: &Path) -> Option<u64> {
    let allocated = layer.metadata().ok()?.blocks().saturating_mul(BLOCK);
    let header = crate::files::read_beginning(layer, qcow2::HEADER).ok()?;
    Some(layer_growth(qcow2::size(&header).ok()?, allocated))
}

/// Returns the number of out-of-memory kills since the boot.
pub fn oom_kills(tree: &Tree) -> u64 {
    let text = tree.read("/proc/vmstat").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Returns the allocated bytes of the files below a folder.
fn files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => files(&entry.path()),
        Ok(metadata) => metadata.blocks().saturating_mul(BLOCK),
        Err(_) => 0,
    });
    sizes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;

    const GIB: u64 = 1 << 30;

    fn spec(uuid: u8, memory: &str) -> VmSpec {
        VmSpec {
            uuid: SystemUuid([uuid; 16]),
            ..fixtures::spec(serde_json::json!({ "memory": memory }))
        }
    }

    fn node() -> Memory {
        Memory { total: 100 * GIB, available: 98 * GIB, ..Memory::default() }
    }

    #[test]
    fn files_huge_pages_and_reserved_memory_are_not_free() {
        let a = spec(1, "60G");
        let b = spec(2, "20G");
        let full = Memory { files: 20 * GIB, available: 78 * GIB, ..node() };
        let left = full.free_beside([&a]);
        assert!(left < b.node_memory(), "{left}: 20 GiB of files, 60 GiB promised and untouched");
        assert!(left > 17 * GIB);
        let huge = Memory { huge: 50 * GIB, ..node() };
        assert!(huge.free_beside([]) < 50 * GIB);
        assert_eq!(node().free_beside([&a, &spec(2, "1T")]), 0);
    }

    #[test]
    fn touched_guest_memory_is_counted_once_and_other_use_subtracted() {
        let a = spec(1, "60G");
        let ran = Memory { available: 38 * GIB, touched: [(a.uuid, 60 * GIB)].into(), ..node() };
        assert!(ran.free_beside([&a]) > 36 * GIB);
        let another = Memory { available: 8 * GIB, ..ran };
        assert!(another.free_beside([&a]) < 8 * GIB, "somebody else has 30 GiB of it");
    }

    #[test]
    fn expected_growth_of_layers_is_not_free() {
        let a = spec(1, "1G");
        let layers = Memory { growth: [(a.uuid, 5 * GIB)].into(), ..node() };
        assert_eq!(node().free_beside([&a]) - layers.free_beside([&a]), 5 * GIB);
        assert_eq!(node().free_beside([]), layers.free_beside([]), "a stopped VM does not grow");
    }

    #[test]
    fn memory_of_qemu_is_read_and_a_reused_process_id_is_ignored() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let tree = Tree::new(dir.path());
        let machines = dir.path().join("vms");
        let uuid = spec(1, "1G").uuid;
        let files = VmPaths::new(&machines, uuid);
        files.make().expect("made");
        let write = |path: &str, text: &[u8]| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write(
            "proc/meminfo",
            b"MemTotal: 1024 kB\nMemAvailable: 512 kB\nShmem: 64 kB\nHugetlb: 128 kB\n",
        );
        write("proc/7/status", b"Name: qemu\nRssAnon:\t   100 kB\n");
        write("proc/7/cmdline", b"qemu\0-pidfile\0/another\0");
        fs::write(files.pid(), "7\n").expect("written");
        let mut header = vec![0; 104];
        header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        // The layer has a backing file.
        header[15] = 104;
        header[24..32].copy_from_slice(&(10 * GIB).to_be_bytes());
        fs::write(files.layer(0), &header).expect("written");
        let seen = read(&tree, &machines);
        assert_eq!(
            (seen.total, seen.available, seen.files, seen.huge),
            (1 << 20, 512 << 10, 64 << 10, 128 << 10)
        );
        assert_eq!((seen.touched.len(), seen.growth.get(&uuid)), (0, Some(&GIB)));
        write("proc/7/cmdline", format!("qemu\0-pidfile\0{}\0", files.pid().display()).as_bytes());
        assert_eq!(read(&tree, &machines).touched.get(&uuid), Some(&(100 << 10)));
        assert!(super::files(&machines) >= 4096);
    }
}
