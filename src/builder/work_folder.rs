//! The work folder of one build, and the lock against a second build.

use super::{
    command::{CommandError, ToolCommand},
    error::{BuildError, io_error},
};
use rustix::fs::{FlockOperation, flock};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Work folder of one build; dropping it removes the folder.
pub(super) struct BuildFolder {
    folder: PathBuf,
    lock: File,
}

impl BuildFolder {
    /// Locks an image or bundle and creates its work folder. Leftovers of a killed build are
    /// removed. No other build has the same folder: programs of a killed build may still run.
    pub(super) fn begin(work_dir: &Path, name: &str) -> Result<Self, BuildError> {
        fs::create_dir_all(work_dir).map_err(io_error("make the folder", work_dir))?;
        let path = work_dir.join(format!("{name}.lock"));
        let lock = File::options().write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(io_error("open the lock", &path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| BuildError::Busy(name.to_owned()))?;
        for left in left_folders(work_dir, name).map_err(io_error("read", work_dir))? {
            remove(&left).map_err(io_error("remove what an earlier build left in", &left))?;
        }
        let folder = work_dir.join(format!("{name}.build.{}", std::process::id()));
        fs::create_dir(&folder).map_err(io_error("make the folder", &folder))?;
        // The path must be absolute, because chroot resolves no relative paths and programs run in
        // other folders.
        let folder = folder.canonicalize().map_err(io_error("find", &folder))?;
        Ok(BuildFolder { folder, lock })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates a folder for the files of a system with all its users.
    pub(super) fn mapped_folder(&self, name: &str) -> Result<MappedFolder, BuildError> {
        self.folder(name).map(MappedFolder)
    }

    /// Creates a folder in the work folder.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf, BuildError> {
        let path = self.path(name);
        fs::create_dir_all(&path).map_err(io_error("make the folder", &path))?;
        Ok(path)
    }
}

/// Returns the work folders of earlier builds of an image or bundle.
fn left_folders(work_dir: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(work_dir)? {
        let path = entry?.path();
        let file_name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let rest = file_name.strip_prefix(name).and_then(|rest| rest.strip_prefix(".build"));
        // Releases before this one used a name without number.
        let is_left = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        left.extend(is_left.then_some(path));
    }
    Ok(left)
}

/// A folder whose files may belong to the users of a user namespace; dropping it removes it.
pub(super) struct MappedFolder(PathBuf);

impl MappedFolder {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MappedFolder {
    fn drop(&mut self) {
        // Dropping the work folder, or the next build, reports what is left.
        let _ = remove_mapped(&self.0);
    }
}

/// Removes a tree with files of other users of a user namespace.
fn remove_mapped(folder: &Path) -> Result<(), CommandError> {
    ToolCommand::as_mapped_root("rm")
        .args(["--recursive", "--force", "--"])
        .arg(folder)
        .removes()
        .run()
}

impl Drop for BuildFolder {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot remove the folder of a build; the next build tries again");
        }
        // Closing the file is not enough: a child that another thread forked holds a copy of the
        // descriptor, and so the lock, until exec.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Removes a tree. Folders of packages may be read-only, which blocks users other than root.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if unlock(folder).and_then(|()| fs::remove_dir_all(folder)).is_ok() {
                return Ok(());
            }
            remove_mapped(folder).map_err(io::Error::other)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn unlock(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unlock(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_folder_is_exclusive_per_image_and_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let work = BuildFolder::begin(dir.path(), "lab").unwrap();
        assert!(matches!(BuildFolder::begin(dir.path(), "lab"), Err(BuildError::Busy(_))));
        BuildFolder::begin(dir.path(), "other").unwrap();
        let folder = work.folder("a/read-only").unwrap();
        fs::write(folder.join("file"), b"x").unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
        let folder = work.path("");
        drop(work);
        assert!(!folder.exists());
    }

    #[test]
    fn build_lock_is_free_after_end_despite_inherited_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let work = BuildFolder::begin(dir.path(), "lab").unwrap();
        let _copy = work.lock.try_clone().unwrap();
        drop(work);
        BuildFolder::begin(dir.path(), "lab").unwrap();
    }

    #[test]
    fn leftovers_of_a_killed_build_are_removed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let left = ["lab.build/stage/x", "lab.build.1/x"].map(|name| dir.path().join(name));
        let other = dir.path().join("lab.builder");
        for folder in left.iter().chain([&other]) {
            fs::create_dir_all(folder).unwrap();
        }
        let work = BuildFolder::begin(dir.path(), "lab").unwrap();
        assert!(left.iter().all(|left| !left.exists()) && other.exists());
        // A program of the killed build finds its own folder no more, and not this one.
        assert!(left.iter().all(|left| fs::write(left.join("source.tar"), b"").is_err()));
        drop(work);
    }
}
