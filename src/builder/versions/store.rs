//! Writes blobs and manifests atomically.

use crate::error::{BuildError, io_error};
use meshd_image::catalog::{
    Image,
    image::{Blob, ImageManifest, blob_path, load_manifest, load_version},
    versions::{BUNDLES, IMAGES, VersionFolder},
};
use meshd_types::{Digest, Timestamp};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use sha2::Digest as _;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Alignment of initrds: the EFI stub concatenates them without padding, and Linux searches the
/// next one at a multiple of this size.
const PAD: u64 = 4;

/// Size of the pieces in which a file is copied.
const PIECE: usize = 1 << 20;

/// Stores the padded content of a file as a blob, under the [`lock`].
pub(crate) fn put_blob(blobs_dir: &Path, file: &Path) -> Result<Blob, BuildError> {
    let store = || {
        let mut source = File::open(file)?;
        // An existing blob may be damaged, so it is replaced.
        let target = |blob: &Blob| blob_path(blobs_dir, &blob.digest);
        let folder = blobs_dir.join("sha256");
        replace(&folder, "blob", 0o644, |out| copy_padded(&mut source, out), target)
    };
    store().map_err(io_error("store", file))
}

/// Copies a file and pads it.
fn copy_padded(source: &mut impl Read, out: &mut impl Write) -> io::Result<Blob> {
    let mut hash = sha2::Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        let length = source.read(&mut piece)?;
        if length == 0 {
            break;
        }
        hash.update(&piece[..length]);
        out.write_all(&piece[..length])?;
        size += length as u64;
    }
    let padded = size.next_multiple_of(PAD);
    let padding = vec![0; usize::try_from(padded - size).unwrap_or(0)];
    hash.update(&padding);
    out.write_all(&padding)?;
    Ok(Blob { digest: Digest(hash.finalize().into()), size: padded })
}

/// Locks the store against changes by other processes; waits for the lock. Removes temporary files
/// of killed builds.
pub(crate) fn lock(blobs_dir: &Path) -> Result<File, BuildError> {
    fs::create_dir_all(blobs_dir).map_err(io_error("make the folder", blobs_dir))?;
    let path = blobs_dir.join("lock");
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(io_error("open the lock", &path))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| io_error("take the lock", &path)(error.into()))?;
    sweep(blobs_dir);
    Ok(file)
}

/// Returns the current time, the build time of manifests.
pub(crate) fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap_or(0))
}

/// Writes the manifest of a version whose blobs are stored. Nodes receive the version only after
/// [`set_current`].
pub(crate) fn put_version<M: Serialize>(
    version_folder: &VersionFolder,
    version: &Digest,
    manifest: &M,
) -> Result<(), BuildError> {
    let path = version_folder.version_path(version);
    let mut text = serde_json::to_vec_pretty(manifest).expect("a manifest has only text keys");
    text.push(b'\n');
    write_whole(&path, &text, 0o644).map_err(io_error("write", &path))
}

/// Number of stored moves for each image.
const MAX_MOVES: u64 = 16;

/// Makes a version current, under the [`lock`]. A crash leaves the old version or the new one
/// current.
pub(crate) fn set_current(
    version_folder: &VersionFolder,
    version: &Digest,
) -> Result<(), BuildError> {
    let pointer = version_folder.pointer().map_err(io_error("read", version_folder.folder()))?;
    if pointer.current == Some(*version) {
        return Ok(());
    }
    let moves_dir = version_folder.moves_dir();
    let number = pointer.moves + 1;
    fs::create_dir_all(&moves_dir).map_err(io_error("make the folder", &moves_dir))?;
    for (old, was) in version_folder.moves().map_err(io_error("read", &moves_dir))? {
        // Remove moves that a crash left incomplete, and old ones.
        if old >= number || old + MAX_MOVES <= number {
            let link = moves_dir.join(format!("{old}.{was}"));
            fs::remove_file(&link).map_err(io_error("remove", &link))?;
        }
    }
    let target = version_folder.move_target(number, version);
    let current = version_folder.current_path();
    let root = current.parent().expect("a manifest lies in a folder");
    let link = root.join(&target);
    symlink(format!("../{version}.json"), &link).map_err(io_error("make the link", &link))?;
    sync_folder(&moves_dir)?;
    let name = current.file_name().unwrap_or_default().to_string_lossy();
    let temporary = root.join(format!(".{name}.{}", std::process::id()));
    // Remove the leftover of a killed process with the same PID.
    let _ = fs::remove_file(&temporary);
    symlink(&target, &temporary).map_err(io_error("make the link", &temporary))?;
    fs::rename(&temporary, &current).map_err(io_error("replace", &current))?;
    sync_folder(root)
}

/// Adds a version whose blobs are stored. Promotes it on request, or if the image has no current
/// version. Returns the manifest as read back from disk.
pub(crate) fn finish(
    blobs_dir: &Path,
    manifest: &ImageManifest,
    promote: bool,
) -> Result<ImageManifest, BuildError> {
    let version_folder = VersionFolder::image(blobs_dir, &manifest.name);
    let version = manifest.version();
    put_version(&version_folder, &version, manifest)?;
    if promote || load_manifest(blobs_dir, &manifest.name).is_err() {
        set_current(&version_folder, &version)?;
    }
    Ok(Image::load(blobs_dir, load_version(blobs_dir, &manifest.name, &version)?)?.manifest)
}

fn sync_folder(folder: &Path) -> Result<(), BuildError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("flush", folder))
}

/// Writes a file atomically: after a crash it has the old or the new content.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("a file has no folder"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    replace(folder, &name, mode, |file| file.write_all(bytes), |()| path.to_owned())
}

/// Writes a temporary file and moves it to its place, which may follow from its content.
fn replace<T>(
    folder: &Path,
    name: &str,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<T>,
    target: impl FnOnce(&T) -> PathBuf,
) -> io::Result<T> {
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        // A link, or a leftover of a killed process with the same PID, is not written through.
        let _ = fs::remove_file(&temporary);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        let result = write(&mut file)?;
        file.sync_all()?;
        fs::rename(&temporary, target(&result))?;
        File::open(folder)?.sync_all()?;
        Ok(result)
    })();
    if written.is_err() {
        // Ignore the error: the caller reports the first one, and the next build removes temporary
        // files.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes temporary files of killed builds. The caller holds the lock, under which all are
/// written, so no build that runs has one. Their process IDs say nothing: another machine may share
/// the folder. Failures are ignored, because such files only occupy space.
fn sweep(blobs_dir: &Path) {
    let mut folders: Vec<PathBuf> =
        ["sha256", IMAGES, BUNDLES].map(|folder| blobs_dir.join(folder)).into();
    let version_names =
        folders.clone().into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let version_names: Vec<PathBuf> =
        version_names.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.extend(version_names.into_iter().filter(|path| path.is_dir()));
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let owner = name
                .to_str()
                .and_then(|name| name.strip_prefix('.')?.rsplit_once('.')?.1.parse::<u32>().ok());
            if owner.is_some() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::fs::MetadataExt as _,
        time::{Duration, Instant},
    };

    #[test]
    fn blob_is_padded_and_stored_under_its_digest() {
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
    fn failed_write_keeps_old_content_and_no_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("old"), b"old").unwrap();
        assert!(write_whole(&path, b"new", 0o644).is_err());
        assert_eq!(fs::read(path.join("old")).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftovers_are_removed_under_the_lock_whatever_their_process() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sha256");
        fs::create_dir(&folder).unwrap();
        let held = lock(dir.path()).unwrap();
        // 4194305 exceeds Linux's largest PID: a machine that shares the folder writes it.
        let foreign = folder.join(".ab.4194305");
        let own = folder.join(format!(".cd.{}", std::process::id()));
        for path in [&foreign, &own, &folder.join("ef")] {
            fs::write(path, b"x").unwrap();
        }
        let path = dir.path().to_owned();
        let next = std::thread::spawn(move || drop(lock(&path).unwrap()));
        // `1: -> FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE ...`, see proc_locks(5).
        let inode = format!(":{} ", held.metadata().unwrap().ino());
        let waits = |line: &str| line.contains("->") && line.contains(&inode);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
            assert!(Instant::now() < deadline && !next.is_finished(), "it waits for the lock");
            std::thread::yield_now();
        }
        assert!(foreign.exists() && own.exists(), "their build has the lock");
        drop(held);
        next.join().unwrap();
        assert!(!foreign.exists() && !own.exists() && folder.join("ef").exists());
    }

    #[test]
    fn private_file_is_written_with_mode_0600() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_whole(&path, b"secret", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
