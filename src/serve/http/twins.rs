//! Blobs in memory that the kernel can also send from a file: sealed, anonymous files with the same bytes.
//!
//! A sealed file cannot be changed by anyone, so its bytes are those whose digest was checked, whatever happens to the blob on the
//! disk. It is made at the first request of a blob, beside that request, which is answered from memory meanwhile.

use crate::id::Digest;
use bytes::Bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
};

/// Smaller blobs are copied: setting up a transfer from a file costs more than it saves.
const WORTH_IT: usize = 64 * 1024;

/// The same bytes in memory and in a file, from their first to their last.
#[derive(Clone)]
pub struct Twin {
    /// In memory.
    pub bytes: Bytes,
    /// In a sealed file.
    pub file: Arc<File>,
}

/// The twins of all blobs that were asked for. As many as there are blobs: those that no image has any more go when one is made.
#[derive(Clone, Default)]
pub struct Twins(Arc<Mutex<BTreeMap<Digest, Option<Arc<File>>>>>);

impl Twins {
    /// The twin of a blob, if it is there; begins to make it if not. `alive` says whether an image still has a blob.
    pub fn of(&self, digest: Digest, bytes: &Bytes, alive: impl Fn(Digest) -> bool) -> Option<Twin> {
        if bytes.len() < WORTH_IT {
            return None;
        }
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let file = match sealed(bytes) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                tracing::warn!(%error, "a blob is sent from memory, which takes more of the processor");
                None
            }
        };
        // A failure is remembered too: what did not work will not work at the next request.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, file);
    }
}

/// A file in memory with these bytes that nobody can change any more.
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

    #[tokio::test]
    async fn a_twin_is_made_once_beside_the_request_and_goes_with_its_image() {
        let twins = Twins::default();
        let (old, new) = (Bytes::from(vec![1; WORTH_IT]), Bytes::from(vec![2; WORTH_IT]));
        let (old_digest, new_digest) = (Digest::of(&old), Digest::of(&new));
        assert!(twins.of(old_digest, &old, |_| true).is_none(), "the first request is not kept waiting");
        while twins.of(old_digest, &old, |_| true).is_none() {
            tokio::task::yield_now().await;
        }
        assert!(twins.of(new_digest, &new, |digest| digest == new_digest).is_none());
        assert!(!twins.0.lock().expect("no panic").contains_key(&old_digest));
        let small = Bytes::from_static(b"small");
        assert!(twins.of(Digest::of(&small), &small, |_| true).is_none());
        assert!(!twins.0.lock().expect("no panic").contains_key(&Digest::of(&small)));
    }
}
