//! User IDs of VMs: a range without entries in /etc/passwd. A VM keeps its ID until it is released, so that no other VM can read its files.

use crate::vm::{
    lock_helpers::locked,
    vm_paths::{self, VmPaths},
};
use std::{collections::BTreeSet, fs, ops::Range, path::Path, sync::Mutex};

/// User IDs of VMs: above the IDs of distributions and container managers, with common bits in [`MASK`].
pub const USERS: Range<u32> = 0x7140_0000..0x7141_0000;
/// Mask of the bits that all user IDs have in common.
pub const MASK: u32 = 0xffff_0000;
/// Group of all VMs. It owns shared devices and no files.
pub const GROUP: u32 = USERS.end;

/// Returns the user ID of a VM; assigns one if the VM has none.
pub fn assign(files: &VmPaths) -> Result<u32, String> {
    /// Serialises the search for a free ID.
    static ASSIGNMENT: Mutex<()> = Mutex::new(());
    let _guard = locked(&ASSIGNMENT);
    if let Some(user) = files.user() {
        return Ok(user);
    }
    let machines = files.folder().parent().unwrap_or(Path::new("/"));
    let taken: BTreeSet<u32> =
        vm_paths::all(machines).into_iter().filter_map(|uuid| VmPaths::new(machines, uuid).user()).collect();
    let user = USERS.into_iter().find(|user| !taken.contains(user));
    let user = user.ok_or("no user ID for a VM is free")?;
    let path = files.user_file();
    fs::write(&path, user.to_string()).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;

    #[test]
    fn vm_has_a_unique_user_until_its_release() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = |last: u8| {
            let files = VmPaths::new(dir.path(), SystemUuid([last; 16]));
            files.make().expect("made");
            files
        };
        let (first, second) = (files(1), files(2));
        let user = assign(&first).expect("assigned");
        assert_eq!(assign(&first), Ok(user), "the assignment is stored");
        assert_eq!((user, assign(&second)), (USERS.start, Ok(USERS.start + 1)));
        fs::remove_dir_all(first.folder()).expect("removed");
        assert_eq!(assign(&files(3)), Ok(user));
        fs::write(second.user_file(), "0").expect("written");
        assert_eq!(second.user(), None, "root is never the user of a VM");
    }
}
