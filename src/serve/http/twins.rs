//! Blobs in memory that the kernel can also send from a file: files without a name that hold the same bytes.
//!
//! Nobody but this process has such a file, so its bytes are those whose digest was checked, whatever becomes of the blob on the disk.
//! It is made at the first request of a blob, beside that request, which is answered from memory meanwhile.
//!
//! It lies on a file system, not in a `memfd`: what is sent from there comes out of the page cache in large folios, where shmem looks
//! up each page (Linux 6.18; a fifth of all that sending a kernel costs, docs/adr/0007). And memory that others need is given back.

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

/// Smaller blobs are copied: setting up a transfer from a file costs more than it saves.
const WORTH_IT: usize = 64 * 1024;

/// The same bytes in memory and in a file, from their first to their last.
#[derive(Clone)]
pub struct Twin {
    /// In memory.
    pub bytes: Bytes,
    pub file: Arc<File>,
}

/// The twins of all blobs that were asked for. As many as there are blobs: those that no image has any more go when one is made.
#[derive(Clone)]
pub struct Twins {
    made: Arc<Mutex<BTreeMap<Digest, Option<Arc<File>>>>>,
    folder: PathBuf,
}

impl Twins {
    /// None yet. `folder` says which file system they are to lie on.
    pub fn new(folder: PathBuf) -> Self {
        Twins { made: Arc::default(), folder }
    }

    /// The twin of a blob, if it is there; begins to make it if not. `alive` says whether an image still has a blob.
    pub fn of(&self, digest: Digest, bytes: &Bytes, alive: impl Fn(Digest) -> bool) -> Option<Twin> {
        if bytes.len() < WORTH_IT {
            return None;
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = made.get(&digest) {
            return file.clone().map(|file| Twin { bytes: bytes.clone(), file });
        }
        made.retain(|other, _| alive(*other));
        made.insert(digest, None);
        let (twins, bytes) = (self.clone(), bytes.clone());
        tokio::task::spawn_blocking(move || twins.make(digest, &bytes));
        None
    }

    fn make(&self, digest: Digest, bytes: &Bytes) {
        let file = match unnamed(&self.folder, bytes).or_else(|_| sealed(bytes)) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                tracing::warn!(%error, "a blob is sent from memory, which takes more of the processor");
                None
            }
        };
        // A failure is remembered too: what did not work will not work at the next request.
        self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, file);
    }
}

/// A file on a file system with these bytes that has no name there, and never had one.
fn unnamed(folder: &Path, bytes: &[u8]) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(folder, flags, Mode::RUSR)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Where the file system has no such files (NFS), or no room: a file in memory that nobody can change any more.
fn sealed(bytes: &[u8]) -> io::Result<File> {
    let file = rustix::fs::memfd_create("meshd-blob", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
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
    fn a_sealed_file_has_the_bytes_and_keeps_them() {
        let file = sealed(b"a kernel").expect("memfd works on every Linux that meshd runs on");
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 0).expect("it is that long");
        assert_eq!(&read, b"a kernel");
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(3).is_err() && file.set_len(99).is_err());
    }

    #[test]
    fn a_file_without_a_name_has_the_bytes_and_is_found_by_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = unnamed(folder.path(), b"a kernel").expect("the file systems that tests run on have such files");
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 0).expect("it is that long");
        assert_eq!(&read, b"a kernel");
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
        assert!(unnamed(&folder.path().join("none"), b"").is_err());
    }

    #[tokio::test]
    async fn a_twin_is_made_once_beside_the_request_and_goes_with_its_image() {
        let folder = tempfile::tempdir().expect("a folder");
        let twins = Twins::new(folder.path().to_owned());
        let (old, new) = (Bytes::from(vec![1; WORTH_IT]), Bytes::from(vec![2; WORTH_IT]));
        let (old_digest, new_digest) = (Digest::of(&old), Digest::of(&new));
        assert!(twins.of(old_digest, &old, |_| true).is_none(), "the first request is not kept waiting");
        while twins.of(old_digest, &old, |_| true).is_none() {
            tokio::task::yield_now().await;
        }
        assert!(twins.of(new_digest, &new, |digest| digest == new_digest).is_none());
        assert!(!twins.made.lock().expect("no panic").contains_key(&old_digest));
        let small = Bytes::from_static(b"small");
        assert!(twins.of(Digest::of(&small), &small, |_| true).is_none());
        assert!(!twins.made.lock().expect("no panic").contains_key(&Digest::of(&small)));
    }
}
