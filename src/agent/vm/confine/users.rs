//! User IDs of VMs: a range without entries in /etc/passwd. A VM keeps its ID until it is released, so that no other VM can read its files.

use crate::vm::vm_paths::{self, VmPaths};
use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// User IDs of VMs: above those of distributions and container managers, and equal under [`MASK`].
pub const USERS: Range<u32> = 0x7140_0000..0x7141_0000;
/// Common bits of all user IDs.
pub const MASK: u32 = 0xffff_0000;
/// Group of all VMs. It owns shared devices and no files.
pub const GROUP: u32 = USERS.end;

/// Serialises the search for a free ID.
static ASSIGNING: Mutex<()> = Mutex::new(());

/// Returns the user ID of a VM; assigns one if it has none.
///
/// # Errors
/// The ID cannot be stored, or no ID is free.
pub fn assign(files: &VmPaths) -> Result<u32, String> {
    let _alone = ASSIGNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(user) = files.user() {
        return Ok(user);
    }
    let machines = files.folder().parent().unwrap_or(Path::new("/"));
    let taken: BTreeSet<u32> =
        vm_paths::all(machines).into_iter().filter_map(|uuid| VmPaths::new(machines, uuid).user()).collect();
    let user = USERS.into_iter().find(|user| !taken.contains(user));
    let user = user.ok_or("every user ID of virtual machines is taken")?;
    let place = files.user_file();
    fs::write(&place, user.to_string()).map_err(|error| format!("{} cannot be written: {error}", place.display()))?;
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;

    #[test]
    fn each_machine_has_its_own_user_until_it_is_released() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = |last: u8| {
            let files = VmPaths::new(dir.path(), SystemUuid([last; 16]));
            files.make().expect("made");
            files
        };
        let (one, two) = (files(1), files(2));
        let first = assign(&one).expect("given");
        assert_eq!(assign(&one), Ok(first), "the same again");
        assert_eq!((first, assign(&two)), (USERS.start, Ok(USERS.start + 1)));
        fs::remove_dir_all(one.folder()).expect("removed");
        assert_eq!(assign(&files(3)), Ok(first));
        fs::write(two.user_file(), "0").expect("written");
        assert_eq!(two.user(), None, "root is nobody's user");
    }
}
