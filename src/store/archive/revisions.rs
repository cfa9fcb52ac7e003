//! The revision archive: contents of profile revisions as files, for rollback.
//!
//! ```text
//! state_dir/revisions/<generation>.json          a revision: the profile, versions of its overlays and of its image
//! state_dir/revisions/overlays/<digest>/<name>/  the folder of an overlay at that revision
//! ```
//!
//! Files are written under another name and renamed. Reads verify the digest of an overlay.

use super::replace_file::{Flush, replace_file};
use crate::ArchiveError;
use meshd_model::fleet::Generation;
use meshd_types::{Digest, OverlayName};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// Maximum size of a revision record, in bytes.
const MAX_REVISION: u64 = 4 << 20;
/// Maximum number of copied files and folders of one overlay.
const MAX_COPIED: usize = 8192;
/// Begin of the names of folders with golden files of an overlay, which are not archived.
const GOLDEN: &str = "golden";

/// The folder of revisions. One writer at a time: a reload.
pub struct RevisionArchive {
    dir: PathBuf,
}

impl RevisionArchive {
    /// Uses the archive below a state folder. Nothing is read.
    pub fn new(state_dir: &Path) -> Self {
        RevisionArchive { dir: state_dir.join("revisions") }
    }

    fn path(&self, generation: Generation) -> PathBuf {
        self.dir.join(format!("{generation}.json"))
    }

    /// The folder with the archived copy of one overlay.
    pub fn overlay_dir(&self, digest: &Digest) -> PathBuf {
        self.dir.join("overlays").join(digest.to_string())
    }

    /// Copies the folder of an overlay, unless it is archived already. Blocks.
    pub fn put_overlay(
        &self,
        name: &OverlayName,
        digest: &Digest,
        folder: &Path,
    ) -> Result<(), ArchiveError> {
        let destination = self.overlay_dir(digest);
        if destination.exists() {
            return Ok(());
        }
        let temporary = self.dir.join(".new");
        let copied = remove(&temporary)
            .and_then(|()| fs::create_dir_all(temporary.join(name.as_str())))
            .and_then(|()| copy(folder, &temporary.join(name.as_str()), &mut 0, Some(GOLDEN)))
            .and_then(|()| fs::create_dir_all(self.dir.join("overlays")))
            .and_then(|()| fs::rename(&temporary, &destination));
        copied.map_err(|source| ArchiveError::Io { path: destination, source })
    }

    /// Removes the copy of an overlay.
    pub fn remove_overlay(&self, digest: &Digest) {
        let _ = remove(&self.overlay_dir(digest));
    }

    /// Returns digests of an overlay's files by their paths: `base/overlay.toml`. Mode and link
    /// target count. Blocks.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn overlay_files(&self, digest: &Digest) -> Result<BTreeMap<String, Digest>, ArchiveError> {
        let dir = self.overlay_dir(digest);
        let mut found = BTreeMap::new();
        let read = digests(&dir, "", &mut found);
        read.map(|()| found).map_err(|source| ArchiveError::Io { path: dir, source })
    }

    /// Archives the text of a revision. Blocks.
    pub fn put(&self, generation: Generation, text: &[u8]) -> Result<(), ArchiveError> {
        let path = self.path(generation);
        let temporary = self.dir.join(".new.json");
        fs::create_dir_all(&self.dir)
            .and_then(|()| replace_file(&path, &temporary, text, Flush::Nothing))
            .map_err(|source| ArchiveError::Io { path, source })
    }

    /// Reads the text of a revision. Blocks.
    pub fn get(&self, generation: Generation) -> Result<Vec<u8>, ArchiveError> {
        super::generation_archive::read(&self.path(generation), MAX_REVISION, || {
            generation.0.short()
        })
    }

    /// Removes all other revisions and overlays. A file that cannot be removed stays until the next
    /// sweep. Blocks.
    pub fn sweep(&self, revisions: &BTreeSet<Generation>, overlays: &BTreeSet<Digest>) {
        let names = |dir: &Path| -> Vec<String> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        for name in names(&self.dir) {
            let generation = name.strip_suffix(".json").and_then(|name| name.parse().ok());
            if let Some(generation) =
                generation.filter(|generation| !revisions.contains(generation))
            {
                let _ = fs::remove_file(self.path(generation));
            }
        }
        for digest in names(&self.dir.join("overlays")).iter().filter_map(|name| name.parse().ok())
        {
            if !overlays.contains(&digest) {
                self.remove_overlay(&digest);
            }
        }
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies files with their modes, and links as links. Skips the folders of the top folder whose
/// names begin with `excluded`.
fn copy(from: &Path, to: &Path, count: &mut usize, excluded: Option<&str>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        *count += 1;
        if *count > MAX_COPIED {
            return Err(io::Error::other(format!("more than {MAX_COPIED} files")));
        }
        let path = entry.path();
        let target = to.join(entry.file_name());
        // Links beside rootfs/ are those of the operator, and are followed when the overlay is
        // read.
        let followed =
            excluded.and_then(|_| fs::metadata(&path).ok()).map(|about| about.file_type());
        let kind = followed.map_or_else(|| entry.file_type(), Ok)?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&path)?, &target)?;
        } else if kind.is_dir() {
            let name = entry.file_name();
            let is_excluded = |begin| name.to_string_lossy().split('.').next() == Some(begin);
            if !excluded.is_some_and(is_excluded) {
                fs::create_dir(&target)?;
                copy(&path, &target, count, None)?;
                // The umask of the daemon takes the bits of other users, which the reader of
                // overlays takes for a stricter mode.
                fs::set_permissions(&target, fs::metadata(&path)?.permissions())?;
            }
        } else if kind.is_file() {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// Bounded by the bounds of the copy.
fn digests(dir: &Path, prefix: &str, found: &mut BTreeMap<String, Digest>) -> io::Result<()> {
    use std::os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _};
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let path = entry.path();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if kind.is_dir() {
            digests(&path, &format!("{name}/"), found)?;
            continue;
        }
        let (mode, content) = if kind.is_symlink() {
            (0, fs::read_link(&path)?.as_os_str().as_bytes().to_vec())
        } else {
            (entry.metadata()?.permissions().mode(), fs::read(&path)?)
        };
        found.insert(name, Digest::of_fields([mode.to_le_bytes().as_slice(), &content]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_copy_keeps_modes_and_links_and_is_removed_when_unused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("motd");
        let store = RevisionArchive::new(dir.path());
        fs::create_dir_all(folder.join("rootfs/etc/golden")).unwrap();
        fs::create_dir_all(folder.join("golden")).unwrap();
        fs::create_dir_all(folder.join("golden.systemd")).unwrap();
        fs::write(folder.join("rootfs/etc/run"), "x").unwrap();
        fs::set_permissions(folder.join("rootfs/etc/run"), fs::Permissions::from_mode(0o755))
            .unwrap();
        fs::set_permissions(folder.join("rootfs/etc"), fs::Permissions::from_mode(0o750)).unwrap();
        std::os::unix::fs::symlink("run", folder.join("rootfs/etc/link")).unwrap();
        let digest = Digest([1; 32]);
        let name = "motd".parse().unwrap();
        store.put_overlay(&name, &digest, &folder).unwrap();
        let copy = store.overlay_dir(&digest).join("motd");
        assert_eq!(
            fs::metadata(copy.join("rootfs/etc/run")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(
            fs::metadata(copy.join("rootfs/etc")).unwrap().permissions().mode() & 0o777,
            0o750
        );
        assert_eq!(fs::read_link(copy.join("rootfs/etc/link")).unwrap(), Path::new("run"));
        assert!(!copy.join("golden").exists() && !copy.join("golden.systemd").exists());
        assert!(copy.join("rootfs/etc/golden").exists());
        let files = store.overlay_files(&digest).unwrap();
        let paths: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(paths, ["motd/rootfs/etc/link", "motd/rootfs/etc/run"]);
        fs::set_permissions(copy.join("rootfs/etc/run"), fs::Permissions::from_mode(0o644))
            .unwrap();
        let changed = store.overlay_files(&digest).unwrap();
        assert_ne!(changed["motd/rootfs/etc/run"], files["motd/rootfs/etc/run"], "its mode counts");
        assert_eq!(changed["motd/rootfs/etc/link"], files["motd/rootfs/etc/link"]);
        assert!(store.overlay_files(&Digest([9; 32])).is_err(), "it is not kept");
        let generation = Generation(Digest([2; 32]));
        store.put(generation, b"{}").unwrap();
        store.sweep(&[generation].into(), &[digest].into());
        assert!(copy.exists() && store.get(generation).is_ok());
        store.sweep(&BTreeSet::new(), &BTreeSet::new());
        assert!(!copy.exists() && store.get(generation).is_err());
    }
}
