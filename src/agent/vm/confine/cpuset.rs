//! Processors that one machine has for itself: the cpuset of its control group, and a partition, by which the kernel keeps every other
//! process of the node off them (Linux, Documentation/admin-guide/cgroup-v2.rst, "Cpuset").
//!
//! The kernel holds the assignment: the groups of live machines name their processors, also after a restart of the agent.

use super::super::host::cpu_list;
use std::{collections::BTreeSet, fs, io, path::Path};

const ONLINE: &str = "/sys/devices/system/cpu/online";
const CPUS: &str = "cpuset.cpus";
const EXCLUSIVE: &str = "cpuset.cpus.exclusive";
const PARTITION: &str = "cpuset.cpus.partition";

/// Processors that a machine was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedicated {
    /// Number of processors.
    pub count: usize,
    /// Processors to choose from; all that are online if absent.
    pub among: Option<Vec<u32>>,
}

/// Binds a group to processors that no other machine has for itself. Returns false where the kernel has no cpuset for it, or too few
/// processors are free: then the machine shares some.
///
/// # Errors
/// The kernel does not accept the processors.
pub fn dedicate(group: &Path, dedicated: &Dedicated) -> io::Result<bool> {
    if !group.join(CPUS).exists() {
        return Ok(false);
    }
    let among = match &dedicated.among {
        Some(among) => among.iter().copied().collect(),
        None => cpu_list(&fs::read_to_string(ONLINE)?).into_iter().collect(),
    };
    let taken = taken(group)?;
    let Some(chosen) = choose(&among, &taken, dedicated.count) else {
        tracing::warn!(group = %group.display(), wanted = dedicated.count, "too few processors are free for a machine");
        return Ok(false);
    };
    fs::write(group.join(CPUS), list(&chosen))?;
    isolate(group, &chosen, &taken);
    Ok(true)
}

/// The highest free processors: the node's own work prefers the first ones. `None` where too few are free. Pure.
fn choose(among: &BTreeSet<u32>, taken: &BTreeSet<u32>, count: usize) -> Option<BTreeSet<u32>> {
    let chosen: BTreeSet<u32> = among.iter().rev().filter(|cpu| !taken.contains(cpu)).take(count).copied().collect();
    (chosen.len() == count).then_some(chosen)
}

/// Processors of the other machines' partitions.
fn taken(group: &Path) -> io::Result<BTreeSet<u32>> {
    let mut taken = BTreeSet::new();
    for sibling in fs::read_dir(group.parent().unwrap_or(group))?.flatten() {
        // One without a list of its own shares; one that is just removed has no file any more.
        let own = fs::read_to_string(sibling.path().join(CPUS)).unwrap_or_default();
        if sibling.path() != group {
            taken.extend(cpu_list(&own));
        }
    }
    Ok(taken)
}

/// Keeps other processes off. Linux before 6.7 has no partitions below groups that are none, and no kernel gives all processors away: then
/// only other machines stay off.
fn isolate(group: &Path, chosen: &BTreeSet<u32>, taken: &BTreeSet<u32>) {
    let above = group.parent().unwrap_or(group);
    let all = chosen.union(taken).copied().collect();
    let isolated = fs::write(above.join(EXCLUSIVE), list(&all))
        .and_then(|()| fs::write(group.join(EXCLUSIVE), list(chosen)))
        .and_then(|()| fs::write(group.join(PARTITION), "root"))
        .and_then(|()| fs::read_to_string(group.join(PARTITION)));
    match isolated {
        Ok(state) if state.trim() == "root" => {}
        Ok(state) => {
            tracing::warn!(group = %group.display(), state = state.trim(), "other processes may use its processors")
        }
        Err(error) => tracing::warn!(group = %group.display(), %error, "other processes may use its processors"),
    }
}

/// As the kernel reads it. Pure.
fn list(cpus: &BTreeSet<u32>) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A group as the kernel would show it, in plain files.
    fn group(above: &Path, name: &str) -> PathBuf {
        let group = above.join(name);
        fs::create_dir_all(&group).expect("made");
        for file in [CPUS, EXCLUSIVE, PARTITION] {
            fs::write(group.join(file), "").expect("written");
        }
        group
    }

    fn dedicated(count: usize, among: &[u32]) -> Dedicated {
        Dedicated { count, among: Some(among.to_vec()) }
    }

    fn read(group: &Path, file: &str) -> String {
        fs::read_to_string(group.join(file)).expect("there")
    }

    #[test]
    fn machines_get_different_processors_and_give_them_back() {
        let above = tempfile::tempdir().expect("a folder");
        let [first, second] = ["first", "second"].map(|name| group(above.path(), name));
        assert!(dedicate(&first, &dedicated(2, &[0, 1, 2, 3])).expect("set"));
        assert!(dedicate(&second, &dedicated(1, &[0, 1, 2, 3])).expect("set"));
        assert_eq!((read(&first, CPUS).as_str(), read(&second, CPUS).as_str()), ("2,3", "1"));
        assert_eq!((read(&second, EXCLUSIVE).as_str(), read(&second, PARTITION).as_str()), ("1", "root"));
        assert_eq!(read(above.path(), EXCLUSIVE), "1,2,3");
        assert!(dedicate(&first, &dedicated(2, &[0, 1, 2, 3])).expect("set"), "the same group again");
        assert_eq!(read(&first, CPUS), "2,3");
        fs::remove_dir_all(&first).expect("removed");
        let third = group(above.path(), "third");
        assert!(dedicate(&third, &dedicated(2, &[2, 3])).expect("set"));
        assert_eq!(read(&third, CPUS), "2,3");
    }

    #[test]
    fn machine_shares_where_too_few_processors_are_free() {
        let above = tempfile::tempdir().expect("a folder");
        let [first, second] = ["first", "second"].map(|name| group(above.path(), name));
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
