//! The generation archive: contents of generations as files, for comparison and for pinned nodes.
//!
//! ```text
//! state_dir/generations/<generation>.json    a generation: all its public parts, files by digest
//! state_dir/generations/content/<digest>     the content of a file, or the target of a link
//! ```
//!
//! Files are written under another name and renamed, contents first, so that a named digest exists.
//! Reads verify digests. Files with secrets are not archived.

use super::replace_file::{Flush, replace_file};
use bytes::Bytes;
use meshd_model::fleet::{ArchivedGeneration, Generation};
use meshd_types::Digest;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Maximum size of a generation record, in bytes: some thousand files.
const MAX_GENERATION: u64 = 4 << 20;
/// Maximum size of a content file, in bytes: an agent is the largest.
const MAX_CONTENT: u64 = 64 << 20;

/// The folder of generations.
pub struct GenerationArchive {
    dir: PathBuf,
    /// Read-locked by writers, write-locked by a sweep, so that a sweep removes no file of a write
    /// in progress.
    sweep_lock: RwLock<()>,
    unique: AtomicU64,
}

/// Why a generation cannot be read or archived.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Never archived, or removed.
    #[error("generation {generation} is not archived")]
    Missing { generation: String },
    /// Stored bytes have changed.
    #[error("generation {generation} is damaged: {what}")]
    Damaged { generation: String, what: String },
    /// A file with a secret has changed; such files are never archived.
    #[error(
        "generation {generation} cannot be restored: {path} contains a secret, is not archived, and has changed"
    )]
    Secret {
        generation: String,
        /// The first changed file with a secret.
        path: String,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

meshd_types::hints!(ArchiveError {
    ArchiveError::Missing { .. } => "`meshd node history NODE` lists archived generations";
    ArchiveError::Damaged { .. } => "assign its profile instead";
    ArchiveError::Secret { .. } => "assign its profile instead";
    ArchiveError::Io { .. } => "check the disk";
});

impl GenerationArchive {
    /// Uses the archive below a state folder. Nothing is read.
    pub fn new(state_dir: &Path) -> Self {
        GenerationArchive {
            dir: state_dir.join("generations"),
            sweep_lock: RwLock::default(),
            unique: AtomicU64::new(0),
        }
    }

    fn path(&self, generation: Generation) -> PathBuf {
        self.dir.join(format!("{generation}.json"))
    }

    fn content_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("content").join(digest.to_string())
    }

    /// True if a generation is archived.
    pub fn has(&self, generation: Generation) -> bool {
        self.path(generation).exists()
    }

    /// Archives a generation with its contents. Blocks. After an error, the generation is not
    /// archived.
    pub fn put<'c>(
        &self,
        generation: Generation,
        kept: &ArchivedGeneration,
        contents: impl IntoIterator<Item = (Digest, &'c [u8])>,
    ) -> Result<(), ArchiveError> {
        let _writing = self.sweep_lock.read().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(generation);
        if path.exists() {
            return Ok(());
        }
        let folder = self.dir.join("content");
        fs::create_dir_all(&folder).map_err(|source| ArchiveError::Io { path: folder, source })?;
        for (digest, bytes) in contents {
            let path = self.content_path(&digest);
            if !path.exists() {
                self.write(&path, bytes)?;
            }
        }
        self.write(&path, &serde_json::to_vec(kept).expect("a generation is plain data"))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), ArchiveError> {
        let temporary =
            self.dir.join(format!(".new-{}", self.unique.fetch_add(1, Ordering::Relaxed)));
        replace_file(path, &temporary, bytes, Flush::Nothing)
            .map_err(|source| ArchiveError::Io { path: path.to_owned(), source })
    }

    /// Reads a generation, without its contents. Blocks.
    pub fn get(&self, generation: Generation) -> Result<ArchivedGeneration, ArchiveError> {
        let name = || generation.0.short();
        let bytes = read(&self.path(generation), MAX_GENERATION, name)?;
        let damaged = |error: serde_json::Error| ArchiveError::Damaged {
            generation: name(),
            what: error.to_string(),
        };
        serde_json::from_slice(&bytes).map_err(damaged)
    }

    /// Reads the content of a file and verifies its digest. Blocks.
    pub fn content(&self, generation: Generation, digest: &Digest) -> Result<Bytes, ArchiveError> {
        let name = || generation.0.short();
        let bytes = read(&self.content_path(digest), MAX_CONTENT, name)?;
        if Digest::of(&bytes) != *digest {
            let what = format!("{} has other bytes", self.content_path(digest).display());
            return Err(ArchiveError::Damaged { generation: name(), what });
        }
        Ok(bytes.into())
    }

    /// Flushes a generation to the disk, because a node depends on it from now on. Blocks.
    pub fn sync(
        &self,
        generation: Generation,
        kept: &ArchivedGeneration,
    ) -> Result<(), ArchiveError> {
        let contents = kept.contents().map(|digest| self.content_path(&digest));
        let folders = [self.dir.clone(), self.dir.join("content")];
        for path in contents.chain([self.path(generation)]).chain(folders) {
            let flushed = fs::File::open(&path).and_then(|file| file.sync_all());
            flushed.map_err(|source| ArchiveError::Io { path, source })?;
        }
        Ok(())
    }

    /// Removes every generation that `keep` does not return, and every unreferenced content.
    /// Returns the number of removed generations. `keep` is called after the folder was read, so
    /// that generations archived meanwhile stay. A file that cannot be removed stays until the next
    /// sweep. Blocks.
    pub fn sweep(
        &self,
        keep: impl FnOnce() -> BTreeSet<Generation>,
    ) -> Result<usize, ArchiveError> {
        let _alone = self.sweep_lock.write().unwrap_or_else(PoisonError::into_inner);
        let listed = names(&self.dir)?;
        let keep = keep();
        let mut referenced = BTreeSet::new();
        let mut removed = 0;
        for name in &listed {
            let generation: Option<Generation> =
                name.strip_suffix(".json").and_then(|name| name.parse().ok());
            match generation {
                Some(generation) if keep.contains(&generation) => {
                    referenced
                        .extend(self.get(generation).iter().flat_map(ArchivedGeneration::contents));
                }
                Some(generation) => {
                    removed += usize::from(fs::remove_file(self.path(generation)).is_ok())
                }
                None if name.starts_with(".new-") => drop(fs::remove_file(self.dir.join(name))),
                None => {}
            }
        }
        let content = self.dir.join("content");
        for name in names(&content)? {
            if name.parse().is_ok_and(|digest: Digest| !referenced.contains(&digest)) {
                let _ = fs::remove_file(content.join(name));
            }
        }
        Ok(removed)
    }
}

fn names(dir: &Path) -> Result<Vec<String>, ArchiveError> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(ArchiveError::Io { path: dir.to_owned(), source }),
    }
}

pub(crate) fn read(
    path: &Path,
    max_length: u64,
    name: impl Fn() -> String,
) -> Result<Vec<u8>, ArchiveError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ArchiveError::Missing { generation: name() },
        _ => ArchiveError::Io { path: path.to_owned(), source },
    };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > max_length {
        let what = format!("{} has {length} bytes", path.display());
        return Err(ArchiveError::Damaged { generation: name(), what });
    }
    fs::read(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::fleet::{ARCHIVE_FORMAT, ArchivedFile, ArchivedKind};
    use meshd_types::SafePath;

    fn generation(number: u8) -> Generation {
        Generation(Digest([number; 32]))
    }

    fn kept(contents: &[&[u8]]) -> ArchivedGeneration {
        let file = |(index, bytes): (usize, &&[u8])| ArchivedFile {
            path: SafePath::new(&format!("/f{index}")).expect("plain"),
            kind: ArchivedKind::File,
            mode: 0o644,
            owner: (0, 0),
            origin: "base".into(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        };
        ArchivedGeneration {
            format: ARCHIVE_FORMAT,
            profile: "p".parse().expect("a name"),
            image: "i".parse().expect("a name"),
            version: Digest([1; 32]),
            args: Vec::new(),
            writable: None,
            root_mode: meshd_proto::stage1::RootMode::Ram,
            stage1: None,
            packages: Vec::new(),
            overlay: Digest([2; 32]),
            files: contents.iter().enumerate().map(file).collect(),
        }
    }

    fn put(store: &GenerationArchive, number: u8, contents: &[&[u8]]) {
        let pairs = contents.iter().map(|bytes| (Digest::of(bytes), *bytes));
        store.put(generation(number), &kept(contents), pairs).expect("kept");
    }

    #[test]
    fn archived_generation_is_read_back_and_damage_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let store = GenerationArchive::new(dir.path());
        assert!(matches!(store.get(generation(1)), Err(ArchiveError::Missing { .. })));
        put(&store, 1, &[b"one", b"both"]);
        assert_eq!(store.get(generation(1)).unwrap(), kept(&[b"one", b"both"]));
        assert_eq!(store.content(generation(1), &Digest::of(b"one")).unwrap(), "one");
        store.sync(generation(1), &kept(&[b"one"])).unwrap();
        fs::write(store.content_path(&Digest::of(b"one")), b"two").unwrap();
        assert!(matches!(
            store.content(generation(1), &Digest::of(b"one")),
            Err(ArchiveError::Damaged { .. })
        ));
        fs::write(store.path(generation(1)), b"{").unwrap();
        assert!(matches!(store.get(generation(1)), Err(ArchiveError::Damaged { .. })));
    }

    #[test]
    fn sweep_removes_only_unused_generations_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let store = GenerationArchive::new(dir.path());
        assert_eq!(store.sweep(BTreeSet::new).unwrap(), 0, "nothing is there yet");
        put(&store, 1, &[b"one", b"both"]);
        put(&store, 2, &[b"two", b"both"]);
        assert_eq!(store.sweep(|| BTreeSet::from([generation(2)])).unwrap(), 1);
        assert!(
            store.get(generation(1)).is_err()
                && store.content(generation(1), &Digest::of(b"one")).is_err()
        );
        for bytes in [b"two".as_slice(), b"both"] {
            assert!(store.content(generation(2), &Digest::of(bytes)).is_ok());
        }
    }
}
