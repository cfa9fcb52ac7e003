//! Dedicated CPUs of a VM: a cpuset partition, from which the kernel keeps all other processes (Linux,
//! Documentation/admin-guide/cgroup-v2.rst, "Cpuset").
//!
//! The kernel holds the assignment: the groups of live machines name their processors, also after a restart of the agent. Those groups are
//! children of the root group: Linux before 6.7 accepts partitions nowhere else.

use crate::vm::host::resources::cpu_list;
use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    sync::{Mutex, PoisonError},
};

const ONLINE: &str = "/sys/devices/system/cpu/online";
const CPUS: &str = "cpuset.cpus";
const PARTITION: &str = "cpuset.cpus.partition";
/// Prefix of the groups with dedicated CPUs.
pub(super) const PREFIX: &str = "meshd-vm-";

/// CPUs that are dedicated to a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedicatedCpus {
    /// Number of CPUs.
    pub count: usize,
    /// Candidate CPUs; all online CPUs if absent.
    pub among: Option<Vec<u32>>,
}

/// Binds a group to CPUs that no other VM has. Returns false if the kernel has no cpuset controller or too few CPUs are free: then the VM
/// shares CPUs.
///
/// # Errors
/// The kernel rejects the CPUs.
pub fn dedicate(group: &Path, dedicated: &DedicatedCpus) -> io::Result<bool> {
    if !group.join(CPUS).exists() {
        tracing::warn!(group = %group.display(), "the kernel has no cpuset for a machine that has processors for itself");
        return Ok(false);
    }
    let among = match &dedicated.among {
        Some(among) => among.iter().copied().collect(),
        None => cpu_list(&fs::read_to_string(ONLINE)?).into_iter().collect(),
    };
    // Serialises choices: VMs start concurrently.
    static CHOOSING: Mutex<()> = Mutex::new(());
    let _one = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = taken(group)?;
    let Some(chosen) = choose(&among, &taken, dedicated.count) else {
        tracing::warn!(group = %group.display(), wanted = dedicated.count, "too few processors are free for a machine");
        return Ok(false);
    };
    fs::write(group.join(CPUS), list(&chosen))?;
    isolate(group);
    Ok(true)
}

/// Frees the CPUs at once: a group with a dying process cannot be removed yet.
pub fn give_back(group: &Path) {
    for (file, value) in [(PARTITION, "member"), (CPUS, "\n")] {
        // A group without cpuset has no such file, and none is made.
        let opened = fs::OpenOptions::new().write(true).open(group.join(file));
        let _ = opened.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    }
}

/// Chooses the highest free CPUs, because the node's own work prefers the first ones. `None` if too few are free. Pure.
fn choose(among: &BTreeSet<u32>, taken: &BTreeSet<u32>, count: usize) -> Option<BTreeSet<u32>> {
    let chosen: BTreeSet<u32> = among.iter().rev().filter(|cpu| !taken.contains(cpu)).take(count).copied().collect();
    (chosen.len() == count).then_some(chosen)
}

/// CPUs of the other VMs' groups.
fn taken(group: &Path) -> io::Result<BTreeSet<u32>> {
    let mut taken = BTreeSet::new();
    for sibling in fs::read_dir(group.parent().unwrap_or(group))?.flatten() {
        // A group that was just removed has no file.
        if sibling.path() != group && sibling.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            taken.extend(cpu_list(&fs::read_to_string(sibling.path().join(CPUS)).unwrap_or_default()));
        }
    }
    Ok(taken)
}

/// Makes the group a partition, which excludes all other processes. If the kernel refuses (a partition must leave CPUs to the others), only
/// other VMs are excluded.
fn isolate(group: &Path) {
    let file = group.join(PARTITION);
    match fs::write(&file, "root").and_then(|()| fs::read_to_string(&file)) {
        Ok(state) if state.trim() == "root" => {}
        Ok(state) => {
            tracing::warn!(group = %group.display(), state = state.trim(), "other processes may use a machine's processors");
        }
        Err(error) => {
            tracing::warn!(group = %group.display(), %error, "other processes may use a machine's processors")
        }
    }
}

/// Formats a CPU list for the kernel. Pure.
fn list(cpus: &BTreeSet<u32>) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A fake group of plain files.
    fn group(above: &Path, name: &str) -> PathBuf {
        let group = above.join(name);
        fs::create_dir_all(&group).expect("made");
        for file in [CPUS, PARTITION] {
            fs::write(group.join(file), "").expect("written");
        }
        group
    }

    fn dedicated(count: usize, among: &[u32]) -> DedicatedCpus {
        DedicatedCpus { count, among: Some(among.to_vec()) }
    }

    fn read(group: &Path, file: &str) -> String {
        fs::read_to_string(group.join(file)).expect("there")
    }

    #[test]
    fn machines_get_different_processors_and_give_them_back() {
        let above = tempfile::tempdir().expect("a folder");
        let [first, second] = ["first", "second"].map(|name| group(above.path(), &format!("{PREFIX}{name}")));
        assert!(dedicate(&first, &dedicated(2, &[0, 1, 2, 3])).expect("set"));
        assert!(dedicate(&second, &dedicated(1, &[0, 1, 2, 3])).expect("set"));
        assert_eq!((read(&first, CPUS).as_str(), read(&second, CPUS).as_str()), ("2,3", "1"));
        assert_eq!(read(&second, PARTITION), "root");
        assert!(dedicate(&first, &dedicated(2, &[0, 1, 2, 3])).expect("set"), "the same group again");
        assert_eq!(read(&first, CPUS), "2,3");
        fs::remove_dir_all(&first).expect("removed");
        let third = group(above.path(), "meshd-vm-third");
        assert!(dedicate(&third, &dedicated(2, &[2, 3])).expect("set"));
        assert_eq!(read(&third, CPUS), "2,3");
    }

    #[test]
    fn machine_shares_where_too_few_processors_are_free() {
        let above = tempfile::tempdir().expect("a folder");
        let [first, second] = ["first", "second"].map(|name| group(above.path(), &format!("{PREFIX}{name}")));
        assert!(dedicate(&first, &dedicated(1, &[0, 1])).expect("set"));
        assert!(!dedicate(&second, &dedicated(2, &[0, 1])).expect("looked"));
        assert_eq!((read(&second, CPUS).as_str(), read(&second, PARTITION).as_str()), ("", ""));
    }

    #[test]
    fn kernel_without_cpuset_is_told_apart() {
        let above = tempfile::tempdir().expect("a folder");
        assert!(!dedicate(above.path(), &dedicated(1, &[0])).expect("looked"));
    }
}
