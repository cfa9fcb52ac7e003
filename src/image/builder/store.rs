//! Writes blobs and manifests atomically.

use super::error::{BuildError, io_error};
use crate::catalog::{
    Image,
    image::{Blob, ImageManifest, blob_path, load_manifest, load_version},
    versions::{BUNDLES, IMAGES, IN_USE, Shelf},
};
use meshd_types::{Digest, ImageName};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

/// Initrds are concatenated by the EFI stub without padding, and Linux looks for the next one at a multiple of this.
const PAD: usize = 4;

/// Puts the bytes of a file into the store, padded, and names them.
pub(super) fn put_blob(blobs_dir: &Path, file: &Path) -> Result<Blob, BuildError> {
    let mut bytes = fs::read(file).map_err(io_error("read", file))?;
    bytes.resize(bytes.len().next_multiple_of(PAD), 0);
    let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
    let path = blob_path(blobs_dir, &blob.digest);
    // What is there under this name may be damaged: write it again, the rename replaces it whole.
    write_whole(&path, &bytes, 0o644).map_err(io_error("write", &path))?;
    Ok(blob)
}

/// Keeps everybody else from adding, promoting or throwing away until it is dropped. Waits for whoever does.
pub(super) fn lock(blobs_dir: &Path) -> Result<File, BuildError> {
    fs::create_dir_all(blobs_dir).map_err(io_error("make the folder", blobs_dir))?;
    let path = blobs_dir.join("lock");
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(io_error("open the lock", &path))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| io_error("take the lock", &path)(error.into()))?;
    Ok(file)
}

/// Writes the manifest of a version; what it names must be in the store. Nodes do not get it before [`point`] says so.
pub(super) fn put_version<M: Serialize>(shelf: &Shelf, version: &Digest, manifest: &M) -> Result<(), BuildError> {
    let path = shelf.version_path(version);
    let mut text = serde_json::to_vec_pretty(manifest).expect("a manifest has only text keys");
    text.push(b'\n');
    write_whole(&path, &text, 0o644).map_err(io_error("write", &path))
}

/// Moves kept of each image: as far back as somebody may want to look.
const MAX_MOVES: u64 = 16;

/// Makes a version the current one, under the [`lock`]. Whenever this dies, the old version is current or the new one.
pub(super) fn point(shelf: &Shelf, version: &Digest) -> Result<(), BuildError> {
    let pointer = shelf.pointer().map_err(io_error("read", shelf.folder()))?;
    if pointer.current == Some(*version) {
        return Ok(());
    }
    let (moves_dir, number) = (shelf.moves_dir(), pointer.moves + 1);
    fs::create_dir_all(&moves_dir).map_err(io_error("make the folder", &moves_dir))?;
    for (old, was) in shelf.moves().map_err(io_error("read", &moves_dir))? {
        // What somebody prepared who then died, or what nobody looks back at any more.
        if old >= number || old + MAX_MOVES <= number {
            let link = moves_dir.join(format!("{old}.{was}"));
            fs::remove_file(&link).map_err(io_error("remove", &link))?;
        }
    }
    let target = shelf.move_target(number, version);
    let current = shelf.current_path();
    let root = current.parent().expect("a manifest lies in a folder");
    let link = root.join(&target);
    symlink(format!("../{version}.json"), &link).map_err(io_error("make the link", &link))?;
    sync_folder(&moves_dir)?;
    let name = current.file_name().unwrap_or_default().to_string_lossy();
    let temporary = root.join(format!(".{name}.{}", std::process::id()));
    // Left by a process of the same number that was killed.
    let _ = fs::remove_file(&temporary);
    symlink(&target, &temporary).map_err(io_error("make the link", &temporary))?;
    fs::rename(&temporary, &current).map_err(io_error("replace", &current))?;
    sync_folder(root)
}

/// Adds a version whose blobs are in the store, and makes it current if that is wanted or there is none. What it gives was read
/// back from the disk: that is what nodes will be served.
pub(super) fn finish(blobs_dir: &Path, manifest: &ImageManifest, promote: bool) -> Result<ImageManifest, BuildError> {
    let (shelf, version) = (Shelf::image(blobs_dir, &manifest.name), manifest.version());
    adopt(blobs_dir, &manifest.name)?;
    put_version(&shelf, &version, manifest)?;
    if promote || load_manifest(blobs_dir, &manifest.name).is_err() {
        point(&shelf, &version)?;
    }
    Ok(Image::load(blobs_dir, load_version(blobs_dir, &manifest.name, &version)?)?.manifest)
}

fn sync_folder(folder: &Path) -> Result<(), BuildError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("flush", folder))
}

/// Turns a manifest that an earlier release wrote as a plain file into a version with a pointer to it, under the [`lock`].
pub(super) fn adopt(blobs_dir: &Path, name: &ImageName) -> Result<(), BuildError> {
    let shelf = Shelf::image(blobs_dir, name);
    let plain = fs::symlink_metadata(shelf.current_path()).is_ok_and(|meta| meta.is_file());
    // One that cannot be read is worth nothing: the next version replaces it.
    let Some(manifest) = plain.then(|| load_manifest(blobs_dir, name).ok()).flatten() else { return Ok(()) };
    let version = manifest.version();
    put_version(&shelf, &version, &manifest)?;
    point(&shelf, &version)
}

/// Writes a file so that a reader, or a crash, sees the old content or the new, never a part.
pub(super) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("a file has no folder"))?;
    fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = File::options().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        // The error that is reported is the first one; a temporary file that cannot be removed is removed by the next build.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes temporary files of builds that were killed. A file that cannot be removed only takes space, so that is no error.
pub(super) fn sweep(blobs_dir: &Path) {
    let mut folders: Vec<PathBuf> = ["sha256", IMAGES, BUNDLES, IN_USE].map(|folder| blobs_dir.join(folder)).into();
    let shelves = folders.clone().into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let shelves: Vec<PathBuf> = shelves.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.extend(shelves.into_iter().filter(|path| path.is_dir()));
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix('.')?.rsplit_once('.')?.1.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_is_padded_named_by_its_bytes_and_alone_in_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in");
        fs::write(&file, b"seven b").unwrap();
        let blob = put_blob(dir.path(), &file).unwrap();
        assert_eq!(blob, Blob { digest: Digest::of(b"seven b\0"), size: 8 });
        assert_eq!(fs::read(blob_path(dir.path(), &blob.digest)).unwrap(), b"seven b\0");
        assert_eq!(fs::read_dir(dir.path().join("sha256")).unwrap().count(), 1);
    }

    #[test]
    fn damaged_blob_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in");
        fs::write(&file, b"12345678").unwrap();
        let blob = put_blob(dir.path(), &file).unwrap();
        fs::write(blob_path(dir.path(), &blob.digest), b"1234567X").unwrap();
        assert_eq!(put_blob(dir.path(), &file).unwrap(), blob);
        assert_eq!(fs::read(blob_path(dir.path(), &blob.digest)).unwrap(), b"12345678");
    }

    #[test]
    fn write_that_fails_leaves_the_old_content_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("old"), b"old").unwrap();
        assert!(write_whole(&path, b"new", 0o644).is_err());
        assert_eq!(fs::read(path.join("old")).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn sweep_removes_only_leftovers_of_a_killed_build() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sha256");
        fs::create_dir(&folder).unwrap();
        let alive = format!(".cd.{}", std::process::id());
        // No process has this number: it is above the largest that Linux gives.
        for name in [".ab.4194305", &alive, "ef"] {
            fs::write(folder.join(name), b"x").unwrap();
        }
        sweep(dir.path());
        assert!(!folder.join(".ab.4194305").exists());
        assert!(folder.join(&alive).exists() && folder.join("ef").exists());
    }

    #[test]
    fn private_file_is_private_from_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_whole(&path, b"secret", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
