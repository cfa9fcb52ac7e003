//! User IDs of VMs and tasks: ranges without entries in /etc/passwd. The ID of a VM is used again
//! only after all others, and while no process has it: what its former owner left cannot reach the
//! next owner. The ID of a task follows from the random ID of the task.

use super::Tree;
use meshd_types::{TaskId, failpoint};
use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    ops::Range,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// User IDs of VMs: above the IDs of distributions and container managers, with common bits in
/// [`MASK`].
pub const VMS: Range<u32> = 0x7140_0000..0x7141_0000;
/// User IDs of the SSH clients that connect administrators to guests: one for each VM.
pub const RELAYS: Range<u32> = VMS.end..VMS.end + (VMS.end - VMS.start);
/// Mask of the bits that all user IDs of VMs have in common.
pub const MASK: u32 = 0xffff_0000;
/// User IDs of tasks whose order names no user.
pub const TASKS: Range<u32> = 0x7200_0000..0x7300_0000;
/// All IDs that the agent assigns: no order may name one.
const ASSIGNED: Range<u32> = VMS.start..TASKS.end;

/// File with the ID after the last assigned one. Like the processes, it is gone after a reboot.
const NEXT: &str = ".next-user";

/// Returns whether the agent assigns this ID, so that no order may name it.
pub fn is_assigned(user: u32) -> bool {
    ASSIGNED.contains(&user)
}

/// Returns the user of a task: the same on all its nodes, which may share files.
pub fn of_task(TaskId([first, second, third, _]): TaskId) -> u32 {
    TASKS.start + u32::from_be_bytes([0, first, second, third])
}

/// Returns the user of the SSH client for the guest of a VM, by the user of that VM.
pub fn relay_of(vm_user: u32) -> Option<u32> {
    VMS.contains(&vm_user).then(|| vm_user + (RELAYS.start - VMS.start))
}

/// Assigns the next free ID of a range. `folder` stores which one is next. `taken` are IDs whose
/// owner may have no process.
pub fn assign(range: &Range<u32>, folder: &Path, taken: &BTreeSet<u32>) -> Result<u32, String> {
    /// Serialises the search for a free ID.
    static ASSIGNMENT: Mutex<()> = Mutex::new(());
    let _guard = ASSIGNMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let path = folder.join(NEXT);
    let stored = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let is_quarantined = failpoint::defends("user-quarantine");
    let next = stored.filter(|next| is_quarantined && range.contains(next)).unwrap_or(range.start);
    let running = users_of_processes(&Tree::new(Path::new("/")));
    let is_free = |user: &u32| !taken.contains(user) && !running.contains(user);
    let user = (next..range.end).chain(range.start..next).find(is_free);
    let user = user.ok_or("no user ID for a VM or task is free")?;
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .and_then(|()| fs::write(&path, (user + 1).to_string()));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(user)
}

/// Returns the real user IDs of all processes.
fn users_of_processes(tree: &Tree) -> BTreeSet<u32> {
    let statuses = tree.list("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    let user = |name: String| {
        let status = tree.read(&format!("/proc/{name}/status"))?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    };
    statuses.filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn user_id_is_reused_only_after_all_others_of_its_range() {
        let dir = tempfile::tempdir().expect("a folder");
        let range = TASKS.end - 4..TASKS.end;
        let next = |taken: &[u32]| assign(&range, dir.path(), &taken.iter().copied().collect());
        let first = range.start;
        assert_eq!((next(&[]), next(&[]), next(&[])), (Ok(first), Ok(first + 1), Ok(first + 2)));
        assert_eq!(next(&[first + 3, first]), Ok(first + 1), "others are taken");
        assert!(next(&[first, first + 1, first + 2, first + 3]).is_err());
        fs::write(dir.path().join(NEXT), "0").expect("written");
        assert_eq!(next(&[]), Ok(first), "root is never assigned");
    }

    #[test]
    fn user_of_a_relay_is_no_user_of_vms_tasks_or_orders() {
        for vm_user in [VMS.start, VMS.end - 1] {
            let relay = relay_of(vm_user).expect("a user");
            assert!(RELAYS.contains(&relay) && is_assigned(relay), "{relay:#x}");
            assert!(!VMS.contains(&relay) && !TASKS.contains(&relay), "{relay:#x}");
            assert_ne!(relay & MASK, VMS.start, "the firewall of VMs does not hold it");
        }
        assert_eq!((relay_of(0), relay_of(VMS.end)), (None, None));
    }

    #[test]
    fn user_id_with_a_running_process_is_not_assigned() {
        let dir = tempfile::tempdir().expect("a folder");
        let range = TASKS.end - 8..TASKS.end - 6;
        let user = range.start.to_string();
        let mut left = Command::new("setpriv");
        let mut left = left
            .args(["--reuid", &user, "--clear-groups", "sleep", "900"])
            .spawn()
            .expect("setpriv runs");
        let runs = || users_of_processes(&Tree::new(Path::new("/"))).contains(&range.start);
        while !runs() {
            assert!(left.try_wait().expect("known").is_none(), "setpriv ended");
            std::thread::yield_now();
        }
        let assigned = assign(&range, dir.path(), &BTreeSet::new());
        left.kill().and_then(|()| left.wait()).expect("killed");
        assert_eq!(assigned, Ok(range.start + 1));
    }
}
