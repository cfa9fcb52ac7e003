//! The key by which this node logs in to the guest of a VM. The node makes it before the first
//! start of the VM. The private half stays in the folder of the VM, where only the user of the SSH
//! client and root read it; cloud-init gives the public half to the guest.

use super::openssh_key::OpensshKey;
use crate::{
    system::user_ids,
    vm::{confine::device::set_owner, vm_paths::VmPaths},
};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Returns the public half of the key of a VM, which is made if it does not exist. A restart of the
/// VM keeps the key: the guest takes keys at its first start only.
pub fn ensure(files: &VmPaths) -> Result<String, String> {
    if let Some(public) = public(files) {
        return Ok(public);
    }
    let user = files.user().and_then(user_ids::relay_of).ok_or("the VM has no user")?;
    let key = OpensshKey::generate()?;
    let written = write(files, user, &key);
    written.map_err(|error| format!("cannot write {}: {error}", files.relay().display()))?;
    Ok(key.public)
}

/// Returns the public half of the key of a VM, if it has one.
pub fn public(files: &VmPaths) -> Option<String> {
    fs::read_to_string(files.relay_public()).ok().map(|text| text.trim().to_owned())
}

/// Writes the public half last: it says that the key is complete.
fn write(files: &VmPaths, user: u32, key: &OpensshKey) -> io::Result<()> {
    match fs::remove_dir_all(files.relay()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::DirBuilder::new().mode(0o700).create(files.relay())?;
    // The folder belongs to root until its files are complete.
    new_file(&files.relay_key(), 0o600, key.private.expose())?;
    set_owner(&files.relay_key(), user, user, 0o600)?;
    set_owner(&files.relay(), user, user, 0o700)?;
    // OpenSSH does not run for a user without an entry.
    let passwd = format!("meshd-relay:x:{user}:{user}::/:/bin/false\n");
    replace(&files.relay_passwd(), 0o644, &passwd)?;
    replace(&files.relay_public(), 0o644, &format!("{}\n", key.public))
}

fn new_file(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file?.write_all(text.as_bytes())
}

fn replace(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    crate::vm::vm_paths::remove_file(&new)?;
    new_file(&new, mode, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn key_is_private_to_its_client_and_kept_for_the_vm() {
        let dir = tempfile::tempdir().expect("a folder");
        let vm = |number| {
            let files = VmPaths::new(dir.path(), SystemUuid([number; 16]));
            files.make().expect("made");
            let user = user_ids::VMS.start + u32::from(number);
            fs::write(files.user_file(), user.to_string()).expect("written");
            files
        };
        let files = vm(1);
        // Left by an agent that was killed while it wrote.
        fs::create_dir(files.relay()).expect("made");
        let public = ensure(&files).expect("a key");
        assert_eq!(ensure(&files).as_deref(), Ok(public.as_str()), "kept");
        assert_ne!(ensure(&vm(2)).expect("a key"), public, "of one VM alone");
        let user = user_ids::RELAYS.start + 1;
        for (path, mode) in [(files.relay_key(), 0o600), (files.relay(), 0o700)] {
            let found = fs::metadata(&path).expect("there");
            assert_eq!((found.mode() & 0o777, found.uid()), (mode, user), "{}", path.display());
        }
        for path in [files.relay_public(), files.relay_passwd()] {
            assert_eq!(fs::metadata(&path).expect("there").uid(), 0, "{}", path.display());
        }
    }

    #[test]
    fn vm_without_user_gets_no_key() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = VmPaths::new(dir.path(), SystemUuid([1; 16]));
        files.make().expect("made");
        assert!(ensure(&files).is_err() && !files.relay().exists());
    }
}
