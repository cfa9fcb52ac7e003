//! Blobs as unnamed files, so that the kernel sends them without a copy (`sendfile`).
//!
//! Only this process can open these files, so changes to the blob on disk cannot affect the
//! verified content. Each file is written in the background at the first request of its blob. That
//! request is answered from memory.
//!
//! The file is on a disk file system, not in a `memfd`. Page cache folios are larger than pages of
//! shmem, which saves a fifth of the cost of sending (Linux 6.18, docs/adr/0007). The kernel can
//! also reclaim page cache.

use bytes::Bytes;
use meshd_types::Digest;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Minimum size of a blob file, in bytes. Smaller blobs are copied, because `sendfile` costs more
/// than it saves.
const MIN_SIZE: usize = 64 * 1024;

/// A blob in memory and in a file.
#[derive(Clone)]
pub struct BlobFile {
    pub bytes: Bytes,
    /// File with the content of the blob.
    pub file: Arc<File>,
}

/// Files of all requested blobs. Creating a file closes the files of removed images.
#[derive(Clone)]
pub struct BlobFiles {
    made: Arc<Mutex<BTreeMap<Digest, Option<Arc<File>>>>>,
    folder: PathBuf,
}

impl BlobFiles {
    /// Creates an empty set. Files are created in `folder`.
    pub fn new(folder: PathBuf) -> Self {
        BlobFiles { made: Arc::default(), folder }
    }

    /// Returns the file of a blob, or begins to write it. `alive` returns true while an image uses
    /// a blob.
    pub fn of(
        &self,
        digest: Digest,
        bytes: &Bytes,
        alive: impl Fn(Digest) -> bool,
    ) -> Option<BlobFile> {
        if bytes.len() < MIN_SIZE {
            return None;
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = made.get(&digest) {
            return file.clone().map(|file| BlobFile { bytes: bytes.clone(), file });
        }
        made.retain(|other, _| alive(*other));
        made.insert(digest, None);
        let blob_files = self.clone();
        let bytes = bytes.clone();
        tokio::task::spawn_blocking(move || blob_files.make(digest, &bytes));
        None
    }

    fn make(&self, digest: Digest, bytes: &Bytes) {
        let file = match unnamed(&self.folder, bytes).or_else(|_| sealed_file(bytes)) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                tracing::warn!(%error, "cannot write a blob file: the blob is sent from memory, which takes more CPU time");
                None
            }
        };
        // A failure is stored too, because a retry would fail as well.
        self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, file);
    }
}

/// Writes an unnamed file.
fn unnamed(folder: &Path, bytes: &[u8]) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(folder, flags, Mode::RUSR)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Writes a sealed file in memory, for file systems without unnamed files (NFS) or without free
/// space.
fn sealed_file(bytes: &[u8]) -> io::Result<File> {
    let file =
        rustix::fs::memfd_create("meshd-blob", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn sealed_file_is_immutable() {
        let file = sealed_file(b"a kernel").expect("memfd works on every Linux that meshd runs on");
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 0).expect("it is that long");
        assert_eq!(&read, b"a kernel");
        assert!(
            file.write_at(b"x", 0).is_err()
                && file.set_len(3).is_err()
                && file.set_len(99).is_err()
        );
    }

    #[test]
    fn unnamed_file_has_content_and_no_directory_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = unnamed(folder.path(), b"a kernel")
            .expect("the file systems that tests run on have such files");
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 0).expect("it is that long");
        assert_eq!(&read, b"a kernel");
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
        assert!(unnamed(&folder.path().join("none"), b"").is_err());
    }

    #[tokio::test]
    async fn blob_file_is_made_in_background_and_removed_with_its_image() {
        let folder = tempfile::tempdir().expect("a folder");
        let blob_files = BlobFiles::new(folder.path().to_owned());
        let old = Bytes::from(vec![1; MIN_SIZE]);
        let new = Bytes::from(vec![2; MIN_SIZE]);
        let old_digest = Digest::of(&old);
        let new_digest = Digest::of(&new);
        assert!(
            blob_files.of(old_digest, &old, |_| true).is_none(),
            "the first request is not kept waiting"
        );
        while blob_files.of(old_digest, &old, |_| true).is_none() {
            tokio::task::yield_now().await;
        }
        assert!(blob_files.of(new_digest, &new, |digest| digest == new_digest).is_none());
        assert!(!blob_files.made.lock().expect("no panic").contains_key(&old_digest));
        let small = Bytes::from_static(b"small");
        assert!(blob_files.of(Digest::of(&small), &small, |_| true).is_none());
        assert!(!blob_files.made.lock().expect("no panic").contains_key(&Digest::of(&small)));
    }
}
