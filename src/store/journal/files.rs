//! File names of the journal, and atomic writes.

use super::{
    frame::{self, Check, HEAD},
    numbered::{Log, ValueLocation},
};
use meshd_types::failpoint;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The [commit marker](super::commit_marker).
pub(super) const COMMIT_MARKER: &str = "acknowledged";
/// Created by an operator to accept a journal without marker; removed after use.
pub(super) const ACCEPTED: &str = "accept-without-marker";
/// Locked by the meshd that uses the store.
pub(super) const LOCK: &str = "lock";
/// Suffix of an incomplete file.
const TEMPORARY_SUFFIX: &str = ".new";
/// Minimum size of a frame of initial records, in bytes.
const FRAME: usize = 1 << 20;

/// The two kinds of files. Number 7 of one goes with number 7 of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// All records as they were when it began, then every change.
    Journal,
    /// The numbered records of a journal that has ended.
    Numbered,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Journal => "journal",
            Kind::Numbered => "numbered",
        }
    }

    pub(super) fn name(self, number: u64) -> String {
        format!("{}-{number:08}", self.word())
    }

    pub(super) fn path(self, dir: &Path, number: u64) -> PathBuf {
        dir.join(self.name(number))
    }
}

/// The first frame of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// [`VERSION`](crate::VERSION).
    pub(super) version: String,
    pub(super) number: u64,
    /// Number of records that follow with the same sequence; a file with fewer is damaged.
    pub(super) records: u64,
    /// The next number of each kind of numbered records: after a numbered file, or at the start of
    /// a journal.
    pub(super) next: BTreeMap<String, u64>,
    /// The file contains all numbered records; earlier files are no longer needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_merged: bool,
}

/// A key and its value; `None` removes the record.
pub(super) type KeyValue<K, V> = (K, Option<V>);

/// A file that was written completely and renamed.
pub(super) struct WrittenFile {
    pub(super) file: Arc<File>,
    pub(super) length: u64,
    pub(super) check: Check,
    /// Locations of its numbered records.
    pub(super) numbered: Vec<(Log, u64, ValueLocation)>,
}

/// Creates a folder that only its owner may read.
pub(super) fn make_folder(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Writes a file under a temporary name, flushes and renames it: after a crash the file is complete
/// or absent.
pub(super) fn write_atomically(
    dir: &Path,
    kind: Kind,
    seq: u64,
    header: &Header,
    records: impl Iterator<Item = io::Result<KeyValue<impl AsRef<[u8]>, impl AsRef<[u8]>>>>,
) -> io::Result<WrittenFile> {
    let temporary = dir.join(format!("{}{TEMPORARY_SUFFIX}", kind.name(header.number)));
    let written = write_temporary(&temporary, seq, header, records).and_then(|whole| {
        let folder = File::open(dir)?;
        failpoint::point("store-whole");
        rename_and_flush(&temporary, &kind.path(dir, header.number), || {
            failpoint::point("store-renamed");
            folder.sync_all()
        })?;
        Ok(whole)
    });
    if written.is_err() {
        // The partial file may be what fills the disk.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Renames a file and flushes its folder. If the flush fails, the file is removed: the next start
/// would use this journal although the previous one continues.
pub(super) fn rename_and_flush(
    temporary: &Path,
    target: &Path,
    flush: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    fs::rename(temporary, target)?;
    flush().inspect_err(|_| {
        let _ = fs::remove_file(target);
        let _ = flush();
    })
}

fn write_temporary(
    temporary: &Path,
    seq: u64,
    header: &Header,
    records: impl Iterator<Item = io::Result<KeyValue<impl AsRef<[u8]>, impl AsRef<[u8]>>>>,
) -> io::Result<WrittenFile> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(temporary)?;
    let file = Arc::new(file);
    let mut length = 0;
    let mut check = Check::default();
    let mut numbered = Vec::new();
    // Returns the offset of the frame.
    let mut put = |body: &[u8]| {
        let mut bytes = Vec::with_capacity(body.len() + HEAD);
        check = frame::write(&mut bytes, check, seq, body);
        let begin = length;
        length += bytes.len() as u64;
        (&*file).write_all(&bytes).map(|()| begin)
    };
    put(&serde_json::to_vec(header).map_err(io::Error::other)?)?;
    let mut body = Vec::new();
    let mut locations = Vec::new();
    for record in records {
        let (key, value) = record?;
        let key = key.as_ref();
        let value = value.as_ref().map(AsRef::as_ref);
        let Some(value) = value else {
            frame::remove(&mut body, key);
            continue;
        };
        frame::put(&mut body, key, value);
        if let Some((log, number)) = Log::parse_key(key) {
            locations.push((log, number, body.len() - value.len(), value.len()));
        }
        if body.len() >= FRAME {
            numbered.extend(value_locations(&file, put(&body)?, &mut locations));
            body.clear();
        }
    }
    if !body.is_empty() {
        numbered.extend(value_locations(&file, put(&body)?, &mut locations));
    }
    file.sync_all()?;
    Ok(WrittenFile { file, length, check, numbered })
}

/// Converts offsets in the body of a frame at `begin` to locations in the file.
fn value_locations<'a>(
    file: &'a Arc<File>,
    begin: u64,
    locations: &'a mut Vec<(Log, u64, usize, usize)>,
) -> impl Iterator<Item = (Log, u64, ValueLocation)> + 'a {
    locations.drain(..).map(move |(log, number, at, length)| {
        (
            log,
            number,
            ValueLocation { file: Arc::clone(file), at: begin + (HEAD + at) as u64, length },
        )
    })
}

/// The sorted numbers of all files of a kind. Removes incomplete files.
pub(super) fn numbers(dir: &Path, kind: Kind) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(kind.word()).and_then(|rest| rest.strip_prefix('-'))
        else {
            continue;
        };
        if rest.ends_with(TEMPORARY_SUFFIX) {
            fs::remove_file(dir.join(&name))?;
        } else if let Ok(number) = rest.parse() {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}
