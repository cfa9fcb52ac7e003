//! Backup: one encrypted file with everything that a site depends on.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `create` | creates a backup: a snapshot of the store, and all files of the site |
//! | `owned_files` | which files below the state folder belong to a backup |
//! | `restore` | restores a backup into a new folder, whole or not at all |
//! | `encryption` | encrypts and decrypts the age format; the digest file beside a backup |
//!
//! The file has the age format with a passphrase, so the program `age` decrypts it too. The content
//! is a gzip-compressed tar. Its last member, `manifest.json`, contains the digests of all other
//! members:
//!
//! | member | content |
//! | --- | --- |
//! | `site.toml`, `overlays/`, `images/` | the site's configuration |
//! | `state/` | the state folder: CA, keys, generations, revisions |
//! | `state/store/` | a snapshot of the store |
//! | `blobs/` | manifests and versions of images and bundles; optionally their blobs |
//! | `secrets/<name>` | secrets of overlays |
//!
//! All members are encrypted, because keys of the authority give control of the rack.
//! docs/adr/0034-backups-in-the-age-format.md.

mod create;
mod encryption;
mod owned_files;
mod restore;

#[cfg(test)]
mod tests;

pub use create::{AUTHORITY, AuthorityFiles, BackupSource, create};
pub use encryption::{MIN_KEY, digest_file, digest_line};
pub use restore::{Restored, restore};

use meshd_config::files::open_regular;
use meshd_image::overlay::{Unpacked, unpack};
use meshd_types::{Digest, SafePath, Secret, Timestamp, failpoint, is_rootfs};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read},
    path::{Component, Path, PathBuf},
};

/// Name of the manifest member.
const MANIFEST: &str = "manifest.json";
/// Maximum length of the first line, in bytes. That of the age format has 21.
const MAX_LINE: u64 = 64;
/// Maximum size of the manifest, in bytes: some hundred thousand members.
const MAX_MANIFEST: u64 = 64 << 20;

/// Bytes of a member in the manifest, beside its name: digest, size and punctuation.
const MEMBER_TEXT: u64 = 128;
/// Maximum size of the names of all entries, counted as in the manifest, which does not list
/// folders.
const MAX_NAMES: u64 = 2 * MAX_MANIFEST;

/// Failures with backups.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file cannot be read or written.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// `read`, `write`...
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The file is no backup.
    #[error("cannot read {}: it is not a backup of meshd", path.display())]
    NoBackup { path: PathBuf },
    /// The format is newer, or no longer supported.
    #[error("cannot read the backup {}: this meshd does not read its format {found}", path.display())]
    Format { path: PathBuf, found: String },
    #[error("cannot read the backup {}: it is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// The key is wrong, or the header is damaged.
    #[error("cannot open the backup {}: wrong key", path.display())]
    Key { path: PathBuf },
    /// Verification without the key needs the digest file.
    #[error("cannot verify {} without its key: there is no {}", path.display(), file.display())]
    NoDigest { path: PathBuf, file: PathBuf },
    /// The key is short enough to be guessed.
    #[error("the key has {length} characters, at least {MIN_KEY} are needed")]
    ShortKey { length: usize },
    /// No restore reads a larger manifest.
    #[error("cannot back up {}: it follows {files} other files, more than a backup holds", path.display())]
    TooManyFiles { path: PathBuf, files: usize },
    #[error("cannot restore into {}: the folder is not empty", path.display())]
    NotEmpty { path: PathBuf },
    /// The files of the backup need more space than a restore may use.
    #[error("cannot restore into {}: the backup has more than the {space} bytes that may be used there", path.display())]
    NoSpace { path: PathBuf, space: u64 },
    /// The restored site file cannot be rewritten.
    #[error("the site file in the backup cannot be read: {0}")]
    Site(String),
    /// The restored store is invalid.
    #[error(transparent)]
    Store(#[from] meshd_store::StoreError),
}

meshd_types::hints!(BackupError {
    BackupError::File { .. } => "check the disk and the permissions";
    BackupError::Format { .. } => "use the meshd that made it";
    BackupError::Damaged { .. } => "use another backup";
    BackupError::Key { .. } => "name the key file of the backup with --key-file";
    BackupError::NoDigest { .. } => "use --key-file";
    BackupError::ShortKey { .. } => "make one with: openssl rand -base64 32";
    BackupError::TooManyFiles { .. } => "remove links between folders of overlays or images";
    BackupError::NotEmpty { .. } => "name a new folder";
    BackupError::NoSpace { .. } => "name a folder on a larger disk";
    @source BackupError::Store(source) => source;
});

/// Size and digest of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// In bytes.
    pub size: u64,
    /// Digest of the content, or of a link's target.
    pub digest: Digest,
}

/// Content of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The site's name.
    pub site: String,
    /// Time of the store's snapshot.
    pub created_at: Timestamp,
    /// Version of the meshd that created the backup.
    pub meshd: String,
    /// [`meshd_store::VERSION`].
    pub store: String,
    /// Whether the backup contains blobs of images and bundles.
    pub blobs: bool,
    /// All members except the manifest.
    pub members: BTreeMap<String, Member>,
    /// Files that the backup does not contain because of their name or kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

impl Manifest {
    /// Returns the size of all members in bytes.
    pub fn size(&self) -> u64 {
        self.members.values().map(|member| member.size).sum()
    }
}

/// Reads a backup and verifies its digests: with the key those of all members, else that of the
/// file. Returns the manifest if the key is given.
///
/// # Errors
/// The backup is damaged, of another format, or encrypted with another key; without the key also a
/// missing digest file.
pub fn verify(path: &Path, key: Option<&Secret<String>>) -> Result<Option<Manifest>, BackupError> {
    check_format(path)?;
    match key {
        Some(key) => read(path, key, |_, _, _| Ok(())).map(Some),
        None => encryption::check_digest(path).map(|()| None),
    }
}

/// Refuses a file of another format.
fn check_format(path: &Path) -> Result<(), BackupError> {
    let mut line = Vec::new();
    let file = open_regular(path).map_err(failed("read", path))?;
    BufReader::new(file)
        .take(MAX_LINE)
        .read_until(b'\n', &mut line)
        .map_err(failed("read", path))?;
    match String::from_utf8_lossy(&line).trim_end().strip_prefix(encryption::MAGIC) {
        Some(encryption::VERSION) => Ok(()),
        Some(other) => {
            Err(BackupError::Format { path: path.to_owned(), found: format!("age {other}") })
        }
        None => Err(BackupError::NoBackup { path: path.to_owned() }),
    }
}

/// Passes every member to `each`, and compares all members with the manifest at the end.
fn read(
    path: &Path,
    key: &Secret<String>,
    mut each: impl FnMut(&SafePath, u32, Unpacked<'_>) -> io::Result<()>,
) -> Result<Manifest, BackupError> {
    check_format(path)?;
    let file = BufReader::new(open_regular(path).map_err(failed("read", path))?);
    let mut plain = encryption::decrypt(file, path, key)?;
    let mut found = BTreeMap::new();
    let mut manifest = None;
    let mut names_size = 0;
    let unpacked = unpack(&mut plain, |member, mode, unpacked| {
        let name = member.relative().to_owned();
        names_size += name.len() as u64 + MEMBER_TEXT;
        if names_size > MAX_NAMES {
            return Err(io::Error::other("it has more files than a backup holds"));
        }
        let top = name.split('/').next().unwrap_or_default();
        if name != MANIFEST && !TOP.contains(&top) {
            return Err(io::Error::other(format!("{name} is no part of a backup")));
        }
        match unpacked {
            Unpacked::File(content) if name == MANIFEST => {
                manifest =
                    Some(serde_json::from_reader::<_, Manifest>(content.take(MAX_MANIFEST))?);
            }
            Unpacked::File(content) => {
                let mut reader = DigestReader { content, hash: sha2::Sha256::new(), size: 0 };
                each(&member, mode, Unpacked::File(&mut reader))?;
                io::copy(&mut reader, &mut io::sink())?;
                found.insert(name, reader.member());
            }
            Unpacked::Link(target)
                if !may_be_link(&name, &target) && failpoint::defends("backup-links") =>
            {
                return Err(io::Error::other(format!(
                    "{name} is a link, which meshd backs up nowhere"
                )));
            }
            Unpacked::Link(target) => {
                found.insert(name, Member { size: 0, digest: Digest::of(target.as_bytes()) });
                each(&member, mode, Unpacked::Link(target))?;
            }
            Unpacked::Folder => each(&member, mode, Unpacked::Folder)?,
        }
        Ok(())
    });
    // The end of the file, after the archive, is authenticated as well.
    let ended = unpacked.and_then(|()| io::copy(&mut plain, &mut io::sink()));
    ended.map_err(|error| damaged(path, error.to_string()))?;
    let manifest = manifest.ok_or_else(|| damaged(path, "it has no manifest"))?;
    let differs = |name: &&String| manifest.members.get(*name) != found.get(*name);
    match manifest.members.keys().chain(found.keys()).find(differs) {
        Some(name) => Err(damaged(path, format!("{name} is not what was backed up"))),
        None => Ok(manifest),
    }
}

/// Files and folders of a backup. A restore moves them into its folder.
const TOP: [&str; 6] = ["site.toml", "state", "blobs", "images", "overlays", "secrets"];

/// Returns true for the links that [`create`] writes and meshd never follows to write or delete: a
/// link elsewhere would lead the restored site to files of this machine.
fn may_be_link(name: &str, target: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        // Operators own these folders, and meshd only reads them.
        ["overlays" | "images", _, ..] => true,
        // The links of a node, in a revision of an overlay.
        ["state", "revisions", "overlays", _, _, folder, _, ..] => is_rootfs(folder.as_ref()),
        // The links to the current manifest of an image.
        ["blobs", "images", inner @ .., _] => is_inside(inner.len(), target),
        _ => false,
    }
}

/// Returns true if a relative target never leaves the folder that is `depth` levels above its link.
fn is_inside(depth: usize, target: &str) -> bool {
    let step = |depth: usize, part| match part {
        Component::Normal(_) => Some(depth + 1),
        Component::CurDir => Some(depth),
        Component::ParentDir => depth.checked_sub(1),
        Component::RootDir | Component::Prefix(_) => None,
    };
    Path::new(target).components().try_fold(depth, step).is_some()
}

/// Computes size and digest of the content while reading.
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

fn damaged(path: &Path, what: impl Into<String>) -> BackupError {
    BackupError::Damaged { path: path.to_owned(), what: what.into() }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    move |source| BackupError::File { operation, path: path.to_owned(), source }
}
