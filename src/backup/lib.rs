//! Backup: one encrypted file with everything that a site depends on.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `create` | creates a backup: a snapshot of the store, and all files of the site |
//! | `restore` | restores a backup into a new folder, whole or not at all |
//! | `encryption` | encrypts and decrypts the age format; the digest file beside a backup |
//! | `format_1` | reads backups of format 1, which meshd wrote until November 2026 |
//!
//! The file has the age format and a passphrase, so that the program `age` decrypts it too. What is encrypted is a gzip-compressed tar.
//! Its last member, `manifest.json`, has the digest of every other one:
//!
//! | member | content |
//! | --- | --- |
//! | `site.toml`, `overlays/`, `images/` | the site as it is written |
//! | `state/` | CA, keys, generations, revisions: all of the state folder |
//! | `state/store/` | the store, as of one moment |
//! | `blobs/` | manifests and versions of images and bundles; their blobs, if they were asked for |
//! | `secrets/<name>` | secrets of overlays |
//!
//! All of it is encrypted, because most of it would help somebody to take the rack over: the authority's key above all.
//! docs/adr/0034-backups-in-the-age-format.md.

mod create;
mod encryption;
mod format_1;
mod restore;

#[cfg(test)]
mod tests;

pub use create::{AUTHORITY, BackupSource, FileGroup, create};
pub use encryption::{MIN_KEY, digest_file, digest_line};
pub use format_1::Head;
pub use restore::{Restored, restore};

use meshd_image::overlay::{Unpacked, unpack};
use meshd_types::{Digest, SafePath, Secret, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
};

/// The member that speaks of all others.
const MANIFEST: &str = "manifest.json";
/// Longest first line, in bytes: of the age format it has 21.
const MAX_LINE: u64 = 64;
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
    #[error("cannot read the backup {}: this meshd does not read its format {found}; use the meshd that made it", path.display())]
    Format { path: PathBuf, found: String },
    /// It is not what was written.
    #[error("cannot read the backup {}: it is damaged: {what}; use another backup", path.display())]
    Damaged { path: PathBuf, what: String },
    /// Encrypted with another key. A damaged header looks the same.
    #[error("cannot open the backup {}: wrong key; name the key file of the backup with --key-file", path.display())]
    Key { path: PathBuf },
    /// Without the key there is nothing to compare it with.
    #[error("cannot verify {} without its key: there is no {}; use --key-file", path.display(), file.display())]
    NoDigest { path: PathBuf, file: PathBuf },
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
    /// What anybody can see; `None` in the age format, which shows nothing.
    pub head: Option<Head>,
    /// What is in it; `None` without the key.
    pub manifest: Option<Manifest>,
}

/// Reads all of a backup and compares it with its digests: with the key those of all members, else that of the file.
///
/// # Errors
/// It is damaged, of another format, or encrypted with another key; without the key also if nothing says what its bytes should be.
pub fn verify(path: &Path, key: Option<&Secret<String>>) -> Result<Verified, BackupError> {
    let head = match BackupFormat::detect(path)? {
        BackupFormat::One => Some(format_1::check(path)?),
        BackupFormat::Age if key.is_none() => encryption::check_digest(path).map(|()| None)?,
        BackupFormat::Age => None,
    };
    let manifest = key.map(|key| read(path, key, |_, _, _| Ok(()))).transpose()?;
    Ok(Verified { head, manifest })
}

/// How the file is encrypted.
#[derive(Clone, Copy)]
enum BackupFormat {
    /// Until November 2026.
    One,
    Age,
}

impl BackupFormat {
    fn detect(path: &Path) -> Result<Self, BackupError> {
        let mut line = Vec::new();
        let file = File::open(path).map_err(failed("read", path))?;
        BufReader::new(file).take(MAX_LINE).read_until(b'\n', &mut line).map_err(failed("read", path))?;
        let line = String::from_utf8_lossy(&line);
        if line.starts_with(format_1::MAGIC) {
            return Ok(BackupFormat::One);
        }
        match line.trim_end().strip_prefix(encryption::MAGIC) {
            Some(encryption::VERSION) => Ok(BackupFormat::Age),
            Some(other) => Err(BackupError::Format { path: path.to_owned(), found: format!("age {other}") }),
            None => Err(BackupError::NoBackup { path: path.to_owned() }),
        }
    }
}

/// Hands over every member, and compares each with the manifest at the end.
fn read(
    path: &Path,
    key: &Secret<String>,
    mut each: impl FnMut(&SafePath, u32, Unpacked<'_>) -> io::Result<()>,
) -> Result<Manifest, BackupError> {
    let file = BufReader::new(File::open(path).map_err(failed("read", path))?);
    let mut plain: Box<dyn Read> = match BackupFormat::detect(path)? {
        BackupFormat::One => {
            format_1::check(path)?;
            Box::new(format_1::Opener::open(file, path, key)?)
        }
        BackupFormat::Age => Box::new(encryption::decrypt(file, path, key)?),
    };
    let (mut found, mut manifest) = (BTreeMap::new(), None);
    let unpacked = unpack(&mut plain, |member, mode, unpacked| {
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
    // Behind the archive comes the end of the file, which is authenticated as well.
    let ended = unpacked.and_then(|()| io::copy(&mut plain, &mut io::sink()));
    ended.map_err(|error| damaged(error.to_string()))?;
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
