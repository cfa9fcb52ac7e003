//! Dedicated CPUs of a VM: a cpuset partition, which excludes all other processes (Linux,
//! Documentation/admin-guide/cgroup-v2.rst, "Cpuset").
//!
//! The groups of running VMs record the assignment, so it survives a restart of the agent. They are
//! children of the root group: Linux before 6.7 accepts partitions nowhere else.

use crate::vm::{host::resources::parse_cpu_list, lock_helpers::locked};
use std::{collections::BTreeSet, fs, io, path::Path, sync::Mutex};

const ONLINE: &str = "/sys/devices/system/cpu/online";
const CPUS: &str = "cpuset.cpus";
const PARTITION: &str = "cpuset.cpus.partition";
/// Prefix of the groups with dedicated CPUs.
pub(super) const PREFIX: &str = "meshd-vm-";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedicatedCpus {
    pub count: usize,
    /// Candidate CPUs; all online CPUs if absent.
    pub candidates: Option<Vec<u32>>,
}

/// Binds a group to CPUs that no other VM has. Returns false if the VM must share CPUs, because the
/// kernel has no cpuset controller or too few CPUs are free.
pub fn dedicate(group: &Path, dedicated: &DedicatedCpus) -> io::Result<bool> {
    if !group.join(CPUS).exists() {
        tracing::warn!(group = %group.display(), "cannot dedicate CPUs: the kernel has no cpuset controller");
        return Ok(false);
    }
    let candidates = match &dedicated.candidates {
        Some(candidates) => candidates.iter().copied().collect(),
        None => parse_cpu_list(&fs::read_to_string(ONLINE)?).into_iter().collect(),
    };
    // Serialises choices: VMs start concurrently.
    static CHOICE: Mutex<()> = Mutex::new(());
    let _guard = locked(&CHOICE);
    let taken = cpus_of_siblings(group)?;
    let Some(chosen) = choose(&candidates, &taken, dedicated.count) else {
        tracing::warn!(group = %group.display(), count = dedicated.count, "cannot dedicate CPUs: too few are free");
        return Ok(false);
    };
    let list: Vec<String> = chosen.iter().map(u32::to_string).collect();
    fs::write(group.join(CPUS), list.join(","))?;
    isolate(group);
    Ok(true)
}

/// Frees the CPUs at once: a group with a dying process cannot be removed yet.
pub fn free(group: &Path) {
    for (file, value) in [(PARTITION, "member"), (CPUS, "\n")] {
        // A group without cpuset controller has no such file, and none is made.
        let opened = fs::OpenOptions::new().write(true).open(group.join(file));
        let _ = opened.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    }
}

/// Chooses the highest free CPUs, because the other processes of the node prefer the first ones.
/// `None` if too few are free. Pure.
fn choose(
    candidates: &BTreeSet<u32>,
    taken: &BTreeSet<u32>,
    count: usize,
) -> Option<BTreeSet<u32>> {
    let chosen: BTreeSet<u32> =
        candidates.iter().rev().filter(|cpu| !taken.contains(cpu)).take(count).copied().collect();
    (chosen.len() == count).then_some(chosen)
}

/// Returns the CPUs of the other VMs.
fn cpus_of_siblings(group: &Path) -> io::Result<BTreeSet<u32>> {
    let mut taken = BTreeSet::new();
    for sibling in fs::read_dir(group.parent().unwrap_or(group))?.flatten() {
        // A group that was just removed has no file.
        if sibling.path() != group
            && sibling.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
        {
            taken.extend(parse_cpu_list(
                &fs::read_to_string(sibling.path().join(CPUS)).unwrap_or_default(),
            ));
        }
    }
    Ok(taken)
}

/// Makes the group a partition, which excludes all other processes. If the kernel refuses, only
/// other VMs are excluded: a partition must leave CPUs to other processes.
fn isolate(group: &Path) {
    let file = group.join(PARTITION);
    let state = fs::write(&file, "root").and_then(|()| fs::read_to_string(&file));
    if !state.as_ref().is_ok_and(|state| state.trim() == "root") {
        tracing::warn!(group = %group.display(), ?state, "other processes may use the dedicated CPUs of a VM");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A fake group of plain files.
    fn group(root: &Path, name: &str) -> PathBuf {
        let group = root.join(name);
        fs::create_dir_all(&group).expect("made");
        for file in [CPUS, PARTITION] {
            fs::write(group.join(file), "").expect("written");
        }
        group
    }

    fn dedicated(count: usize, candidates: &[u32]) -> DedicatedCpus {
        DedicatedCpus { count, candidates: Some(candidates.to_vec()) }
    }

    fn two_groups(root: &Path) -> [PathBuf; 2] {
        ["first", "second"].map(|name| group(root, &format!("{PREFIX}{name}")))
    }

    fn read(group: &Path, file: &str) -> String {
        fs::read_to_string(group.join(file)).expect("there")
    }

    #[test]
    fn vms_get_different_cpus_and_free_them() {
        let root = tempfile::tempdir().expect("a folder");
        let [first, second] = two_groups(root.path());
        assert!(dedicate(&first, &dedicated(2, &[0, 1, 2, 3])).expect("set"));
        assert!(dedicate(&second, &dedicated(1, &[0, 1, 2, 3])).expect("set"));
        assert_eq!((read(&first, CPUS).as_str(), read(&second, CPUS).as_str()), ("2,3", "1"));
        assert_eq!(read(&second, PARTITION), "root");
        assert!(
            dedicate(&first, &dedicated(2, &[0, 1, 2, 3])).expect("set"),
            "the same group again"
        );
        assert_eq!(read(&first, CPUS), "2,3");
        fs::remove_dir_all(&first).expect("removed");
        let third = group(root.path(), "meshd-vm-third");
        assert!(dedicate(&third, &dedicated(2, &[2, 3])).expect("set"));
        assert_eq!(read(&third, CPUS), "2,3");
    }

    #[test]
    fn vm_shares_cpus_if_too_few_are_free() {
        let root = tempfile::tempdir().expect("a folder");
        let [first, second] = two_groups(root.path());
        assert!(dedicate(&first, &dedicated(1, &[0, 1])).expect("set"));
        assert!(!dedicate(&second, &dedicated(2, &[0, 1])).expect("no error"));
        assert_eq!((read(&second, CPUS).as_str(), read(&second, PARTITION).as_str()), ("", ""));
    }

    #[test]
    fn vm_shares_cpus_if_the_kernel_has_no_cpuset() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(!dedicate(root.path(), &dedicated(1, &[0])).expect("no error"));
    }
}
