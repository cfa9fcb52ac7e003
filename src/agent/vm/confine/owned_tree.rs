//! Ownership of files that the user of a VM could have replaced. Each entry is opened without
//! following links, examined, and changed by its descriptor: a link to a file of the node never
//! changes the owner of that file.

use meshd_types::failpoint;
use rustix::{
    fd::BorrowedFd,
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, open,
        openat,
    },
};
use std::{io, os::fd::AsFd as _, path::Path};

/// Maximum number of files; swtpm makes three.
const MAX_FILES: usize = 256;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 4;

/// Gives a folder and everything in it to a user.
///
/// # Errors
/// A file has another name elsewhere, or is neither a regular file nor a socket, or a limit is
/// exceeded.
pub fn set_owner(folder: &Path, (user, group): (u32, u32)) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(folder, flags, Mode::empty())?;
    let mut owner =
        Owner { user: Uid::from_raw(user), group: Gid::from_raw(group), remaining: MAX_FILES };
    owner.take_entries(folder.as_fd(), MAX_DEPTH)?;
    fchown(&folder, Some(owner.user), Some(owner.group))?;
    Ok(fchmod(&folder, Mode::RWXU)?)
}

struct Owner {
    user: Uid,
    group: Gid,
    /// Number of files that may follow.
    remaining: usize,
}

impl Owner {
    fn take_entries(&mut self, folder: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if [&b"."[..], b".."].contains(&name.to_bytes()) {
                continue;
            }
            let refused =
                |reason: &str| io::Error::other(format!("{}: {reason}", name.to_string_lossy()));
            self.remaining =
                self.remaining.checked_sub(1).ok_or_else(|| refused("too many files"))?;
            // O_PATH neither waits for a FIFO nor affects a device.
            let file = openat(
                folder,
                name,
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let found = fstat(&file)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    let depth = depth.checked_sub(1).ok_or_else(|| refused("too many folders"))?;
                    let folder = openat(
                        &file,
                        c".",
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                        Mode::empty(),
                    )?;
                    self.take_entries(folder.as_fd(), depth)?;
                }
                _ if !failpoint::defends("vm-owned-tree") => {}
                FileType::RegularFile | FileType::Socket if found.st_nlink == 1 => {}
                FileType::RegularFile | FileType::Socket => {
                    return Err(refused("the file has another name elsewhere"));
                }
                _ => return Err(refused("neither a regular file nor a socket")),
            }
            chownat(&file, c"", Some(self.user), Some(self.group), AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mknodat};
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    const OWNER: (u32, u32) = (65_534, 65_533);

    fn owner(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).expect("there");
        (found.uid(), found.gid())
    }

    #[test]
    fn whole_tree_belongs_to_its_new_owner() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("tpm");
        fs::create_dir_all(state.join("sub")).expect("made");
        let files = [state.join("tpm2-00.permall"), state.join("sub/file")];
        files.iter().for_each(|file| fs::write(file, "x").expect("written"));
        let socket = state.join("sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
        set_owner(&state, OWNER).expect("set");
        for path in files.iter().chain([&state, &state.join("sub"), &socket]) {
            assert_eq!(owner(path), OWNER, "{}", path.display());
        }
        assert_eq!(fs::metadata(&state).expect("there").mode() & 0o777, 0o700);
    }

    #[test]
    fn link_to_a_file_of_the_node_leaves_its_owner() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("tpm");
        let victim = dir.path().join("shadow");
        fs::write(&victim, "x").expect("written");
        let before = owner(&victim);
        let attempt = |make: &dyn Fn(&Path)| {
            let _ = fs::remove_dir_all(&state);
            fs::create_dir(&state).expect("made");
            make(&state.join("tpm2-00.permall"));
            let refused = set_owner(&state, OWNER).is_err();
            assert_eq!(owner(&victim), before);
            assert!(refused);
        };
        attempt(&|path| fs::hard_link(&victim, path).expect("linked"));
        attempt(&|path| symlink(&victim, path).expect("linked"));
        attempt(&|path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).expect("made"));
        fs::remove_dir_all(&state).expect("removed");
        symlink(dir.path(), &state).expect("linked");
        assert!(set_owner(&state, OWNER).is_err(), "the folder itself");
    }

    #[test]
    fn tree_beyond_its_limits_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let deep = (0..=MAX_DEPTH).fold(dir.path().join("deep"), |path, _| path.join("x"));
        fs::create_dir_all(deep).expect("made");
        assert!(set_owner(&dir.path().join("deep"), OWNER).is_err());
        let many = dir.path().join("many");
        fs::create_dir(&many).expect("made");
        (0..=MAX_FILES)
            .for_each(|number| fs::write(many.join(number.to_string()), "").expect("written"));
        assert!(set_owner(&many, OWNER).is_err());
    }
}
