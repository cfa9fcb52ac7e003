//! User of a VM. A VM keeps its user until it is released, so that no other VM can read its files.

use crate::{
    system::user_ids::{self, VMS},
    vm::vm_paths::{self, VmPaths},
};
use std::{fs, path::Path};

/// Group of all VMs. It owns shared devices and no files.
pub const GROUP: u32 = VMS.end;

/// Returns the user ID of a VM; assigns one if the VM has none.
pub fn assign(files: &VmPaths) -> Result<u32, String> {
    if let Some(user) = files.user() {
        return Ok(user);
    }
    let machines = files.folder().parent().unwrap_or(Path::new("/"));
    let taken = vm_paths::all(machines)
        .into_iter()
        .filter_map(|uuid| VmPaths::new(machines, uuid).user())
        .collect();
    let user = user_ids::assign(&VMS, machines, &taken)?;
    let path = files.user_file();
    fs::write(&path, user.to_string())
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;

    #[test]
    fn vm_has_a_user_that_no_later_vm_gets() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = |last: u8| {
            let files = VmPaths::new(dir.path(), SystemUuid([last; 16]));
            files.make().expect("made");
            files
        };
        let first = files(1);
        let second = files(2);
        let user = assign(&first).expect("assigned");
        assert_eq!(assign(&first), Ok(user), "the assignment is stored");
        let next = assign(&second).expect("assigned");
        assert!(VMS.contains(&user) && user < next);
        fs::remove_dir_all(first.folder()).expect("removed");
        assert!(assign(&files(3)).expect("assigned") > next, "not that of the first one again");
        fs::write(second.user_file(), "0").expect("written");
        assert_eq!(second.user(), None, "root is never the user of a VM");
    }
}
