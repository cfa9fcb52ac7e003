//! Backup: one encrypted file with everything that a site depends on.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `create` | creates a backup: a snapshot of the store, and all files of the site |
//! | `restore` | restores a backup into a new folder, whole or not at all |
//! | `seal` | encrypts a stream in chunks with a key derived from a passphrase by Argon2id |
//!
//! ```text
//! meshd-backup 1\n                      format
//! {"site":...,"made_at":...,"kdf":...}\n  what may be known without the key
//! chunks                                ChaCha20-Poly1305, each bound to its place and to the two lines above
//! end, SHA-256 of all that is above     so that damage is seen without the key
//! ```
//! What is sealed is a gzip-compressed tar. Its last member, `manifest.json`, has the digest of every other one:
//!
//! | member | content |
//! | --- | --- |
//! | `site.toml`, `overlays/`, `images/` | the site as it is written |
//! | `state/` | CA, keys, generations, revisions: all of the state folder |
//! | `state/store/` | the store, as of one moment |
//! | `blobs/` | manifests and versions of images and bundles; their blobs, if they were asked for |
//! | `secrets/<name>` | secrets of overlays |
//!
//! All of it is sealed, because most of it would help somebody to take the rack over: the authority's key above all. docs/adr/0020.

mod create;
mod restore;
mod seal;

#[cfg(test)]
mod tests;

pub use create::{AUTHORITY, BackupSource, FileGroup, create};
pub use restore::{Restored, restore};
pub use seal::{Head, MIN_KEY};

use meshd_image::overlay::{Unpacked, unpack};
use meshd_types::{Digest, SafePath, Secret, Timestamp};
use seal::Opener;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

/// Version of the file. Another one is refused.
pub const FORMAT: u32 = 1;
/// The member that speaks of all others.
const MANIFEST: &str = "manifest.json";
/// Largest manifest, in bytes: some hundred thousand members.
const MAX_MANIFEST: u64 = 64 << 20;

/// What can go wrong with a backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file cannot be read or written.
    #[error("cannot {operation} {}; check the disk and the permissions", path.display())]
    File {
        /// `read`, `write`...
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// It is another kind of file.
    #[error("cannot read {}: it is not a backup of meshd", path.display())]
    NoBackup { path: PathBuf },
    /// A newer, or much older, meshd made it.
    #[error("cannot read the backup {}: it has format {found}, this meshd reads format {FORMAT}; use the meshd that made it", path.display())]
    Format { path: PathBuf, found: String },
    /// It is not what was written.
    #[error("cannot read the backup {}: it is damaged: {what}; use another backup", path.display())]
    Damaged { path: PathBuf, what: String },
    /// Whole, and sealed with something else.
    #[error("cannot open the backup {}: wrong key; name the key file of the backup with --key-file", path.display())]
    Key { path: PathBuf },
    /// A key that somebody could guess.
    #[error("the key has {length} characters, at least {MIN_KEY} are needed; make one with: openssl rand -base64 32")]
    ShortKey { length: usize },
    /// Something is there already.
    #[error("cannot restore into {}: the folder is not empty; name a new folder", path.display())]
    NotEmpty { path: PathBuf },
    /// The restored site file cannot be made.
    #[error("the site file in the backup cannot be read: {0}")]
    Site(String),
    /// The restored store is refused.
    #[error(transparent)]
    Store(#[from] meshd_store::StoreError),
}

/// Of every member: how long it is and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// In bytes.
    pub size: u64,
    /// Of its content; of a link, of its target.
    pub digest: Digest,
}

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The site's name.
    pub site: String,
    /// The moment that the store is of.
    pub made_at: Timestamp,
    /// The meshd that made it.
    pub meshd: String,
    /// [`meshd_store::VERSION`].
    pub store: String,
    /// Whether blobs of images and bundles are in it.
    pub blobs: bool,
    /// Every member but this one.
    pub members: BTreeMap<String, Member>,
}

impl Manifest {
    /// Bytes of all members.
    pub fn size(&self) -> u64 {
        self.members.values().map(|member| member.size).sum()
    }
}

/// What is known of a backup after all of it was read.
#[derive(Clone, Debug)]
pub struct Verified {
    /// What anybody can see.
    pub head: Head,
    /// What is in it; `None` without the key.
    pub manifest: Option<Manifest>,
}

/// Reads all of a backup and compares it with its digests: that of the file, and with the key those of all members.
///
/// # Errors
/// It is damaged, of another format, or sealed with another key.
pub fn verify(path: &Path, key: Option<&Secret<String>>) -> Result<Verified, BackupError> {
    let head = seal::check(path)?;
    let manifest = key.map(|key| read(path, key, |_, _, _| Ok(()))).transpose()?;
    Ok(Verified { head, manifest })
}

/// Hands over every member, and compares each with the manifest at the end.
fn read(
    path: &Path,
    key: &Secret<String>,
    mut each: impl FnMut(&SafePath, u32, Unpacked<'_>) -> io::Result<()>,
) -> Result<Manifest, BackupError> {
    let file = File::open(path).map_err(failed("read", path))?;
    let opener = Opener::open(BufReader::new(file), path, key)?;
    let (mut found, mut manifest) = (BTreeMap::new(), None);
    let unpacked = unpack(opener, |member, mode, unpacked| {
        let name = member.relative().to_owned();
        match unpacked {
            Unpacked::File(content) if name == MANIFEST => {
                manifest = Some(serde_json::from_reader::<_, Manifest>(content.take(MAX_MANIFEST))?);
            }
            Unpacked::File(content) => {
                let mut seen = DigestReader { content, hash: sha2::Sha256::new(), size: 0 };
                each(&member, mode, Unpacked::File(&mut seen))?;
                io::copy(&mut seen, &mut io::sink())?;
                found.insert(name, seen.member());
            }
            Unpacked::Link(target) => {
                found.insert(name, Member { size: 0, digest: Digest::of(target.as_bytes()) });
                each(&member, mode, Unpacked::Link(target))?;
            }
            Unpacked::Folder => each(&member, mode, Unpacked::Folder)?,
        }
        Ok(())
    });
    let damaged = |what: String| BackupError::Damaged { path: path.to_owned(), what };
    unpacked.map_err(|error| damaged(error.to_string()))?;
    let manifest = manifest.ok_or_else(|| damaged("it has no manifest".to_owned()))?;
    let differs = |name: &&String| manifest.members.get(*name) != found.get(*name);
    match manifest.members.keys().chain(found.keys()).find(differs) {
        Some(name) => Err(damaged(format!("{name} is not what was backed up"))),
        None => Ok(manifest),
    }
}

/// Reads, and learns what it read.
struct DigestReader<R> {
    content: R,
    hash: sha2::Sha256,
    size: u64,
}

impl<R> DigestReader<R> {
    fn member(self) -> Member {
        Member { size: self.size, digest: Digest(self.hash.finalize().into()) }
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.size += count as u64;
        Ok(count)
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    move |source| BackupError::File { operation, path: path.to_owned(), source }
}
