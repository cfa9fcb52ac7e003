//! Opens a journal: verifies every byte, and distinguishes a crash from damage by the commit
//! marker.

use super::{
    Disk, Journal, LogSnapshot, Position, Records,
    commit_marker::{CommitMarker, MarkerRecord},
    compact_at,
    files::{self, Header, Kind, write_atomically},
    frame::{self, Frame, Frames},
    lock,
    numbered::{Index, Log, ValueLocation},
};
use crate::{READABLE, StoreError, VERSION};
use meshd_types::failpoint;
use rustix::fs::{FlockOperation, flock};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

impl Journal {
    /// Opens or creates the journal in a folder. A damaged journal is not changed.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_by(dir, Trust::Marker)
    }

    /// Opens a complete journal without commit marker, such as one from a backup, and creates the
    /// marker. A partial change at the end is refused.
    pub fn open_whole(dir: &Path) -> Result<Self, StoreError> {
        Self::open_by(dir, Trust::Files)
    }

    fn open_by(dir: &Path, trust: Trust) -> Result<Self, StoreError> {
        let fault = |source| StoreError::Open { path: dir.to_owned(), source };
        files::make_folder(dir).map_err(fault)?;
        let lock = lock_folder(dir)?;
        let journals = files::numbers(dir, Kind::Journal).map_err(fault)?;
        let numbered_files = files::numbers(dir, Kind::Numbered).map_err(fault)?;
        let is_new = journals.is_empty() && numbered_files.is_empty();
        let marker_record = read_marker(dir, is_new, trust)?;
        let mut marker = CommitMarker::open(&dir.join(files::COMMIT_MARKER)).map_err(fault)?.0;
        let number = match journals.last() {
            Some(number) => *number,
            None => {
                if is_new && marker_record.is_none_or(|marker_record| marker_record.seq == 0) {
                    // Before the journal is created, so that it always has a marker.
                    marker.write_twice(0, 1).map_err(fault)?;
                }
                create_first_journal(
                    dir,
                    is_new && marker_record.is_none_or(|marker_record| marker_record.seq == 0),
                )?
            }
        };
        let first = marker_record.map_or_else(
            || numbered_files.first().copied().unwrap_or(number),
            |marker_record| marker_record.first,
        );
        let index = Index::default();
        for file_number in first..number {
            read_numbered(&Kind::Numbered.path(dir, file_number), file_number, &index)?;
        }
        let read = read_journal(&Kind::Journal.path(dir, number), number, marker_record, &index)?;
        // Files are removed only after everything was read. An interrupted compaction leaves the
        // former journal, a numbered file of the present journal, or numbered files before the
        // first.
        let old = journals.into_iter().filter(|old| *old < number).map(|old| (Kind::Journal, old));
        let numbered_files = numbered_files
            .into_iter()
            .filter(|file_number| !(first..number).contains(file_number))
            .map(|file_number| (Kind::Numbered, file_number));
        for (kind, number) in old.chain(numbered_files) {
            fs::remove_file(kind.path(dir, number)).map_err(fault)?;
        }
        let JournalContent { file, length, check, seq, records_end, is_old, records } = read;
        let mut disk = Disk {
            file,
            number,
            length,
            seq,
            check,
            is_torn: false,
            // A store of another readable version is rewritten at once.
            compact_at: if is_old { 0 } else { compact_at(records_end) },
            marker,
            first,
        };
        disk.file.set_len(length).and_then(|()| disk.file.sync_all()).map_err(fault)?;
        disk.marker.write_twice(seq, first).map_err(fault)?;
        Ok(Journal {
            dir: dir.to_owned(),
            opened: Mutex::new(records),
            disk: Mutex::new(disk),
            index,
            _lock: lock,
        })
    }

    /// Returns all flushed changes as files that form the same store elsewhere. Files only grow or
    /// are deleted, so these bytes do not change.
    pub(super) fn copy_files(&self) -> io::Result<LogSnapshot> {
        let disk = lock(&self.disk);
        let numbered = (disk.first..disk.number).map(|number| Kind::Numbered.name(number));
        let whole = |name: String| {
            let file = File::open(self.dir.join(&name))?;
            let length = file.metadata()?.len();
            Ok((name, file, length))
        };
        let mut parts = numbered.map(whole).collect::<io::Result<Vec<_>>>()?;
        let name = Kind::Journal.name(disk.number);
        parts.push((name.clone(), File::open(self.dir.join(name))?, disk.length));
        Ok(LogSnapshot { position: Position(disk.seq), files: parts })
    }
}

/// The evidence that no acknowledged change is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// The commit marker, or an operator who accepts the journal without it.
    Marker,
    /// The origin of the files.
    Files,
}

/// Reads the commit marker. A journal without one is refused: missing last changes could not be
/// detected.
fn read_marker(dir: &Path, is_new: bool, trust: Trust) -> Result<Option<MarkerRecord>, StoreError> {
    let path = dir.join(files::COMMIT_MARKER);
    let fault = |source| StoreError::Open { path: dir.to_owned(), source };
    let marker_record = CommitMarker::read(&path).map_err(fault)?;
    if marker_record.is_some()
        || is_new
        || trust == Trust::Files
        || !failpoint::defends("commit-marker")
    {
        return Ok(marker_record);
    }
    let accepted = dir.join(files::ACCEPTED);
    if !accepted.exists() {
        return Err(StoreError::Marker { path, accept: accepted });
    }
    tracing::warn!(
        marker = %path.display(),
        "the commit marker is missing or altered; the journal is accepted as it is, as an operator confirmed"
    );
    fs::remove_file(&accepted).map_err(fault)?;
    Ok(None)
}

/// Prevents other processes from opening the store.
#[derive(Debug)]
pub(super) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread forks holds a copy of the descriptor,
        // and with it the lock, until it executes.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock_folder(dir: &Path) -> Result<FolderLock, StoreError> {
    let path = dir.join(files::LOCK);
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|source| StoreError::Open { path: dir.to_owned(), source })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(FolderLock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Held { path: dir.to_owned() }),
        Err(error) => Err(StoreError::Open { path: dir.to_owned(), source: error.into() }),
    }
}

/// Creates the journal of a new store. A missing journal of an existing store is an error.
fn create_first_journal(dir: &Path, is_new: bool) -> Result<u64, StoreError> {
    let fault = |source| StoreError::Open { path: dir.to_owned(), source };
    if !is_new {
        return Err(damaged(dir, 0, "its journal is missing"));
    }
    let next = Log::all().map(|log| (log.prefix().to_owned(), 0)).collect();
    let header =
        Header { version: VERSION.to_owned(), number: 1, records: 0, next, is_merged: false };
    let nothing = std::iter::empty::<io::Result<files::KeyValue<&[u8], &[u8]>>>();
    write_atomically(dir, Kind::Journal, 0, &header, nothing).map_err(fault)?;
    Ok(1)
}

/// Reads the numbered records of a finished journal.
fn read_numbered(path: &Path, number: u64, index: &Index) -> Result<(), StoreError> {
    let bytes = read(path)?;
    let file = Arc::new(
        File::open(path).map_err(|source| StoreError::Open { path: path.to_owned(), source })?,
    );
    let mut frames = Frames::new(&bytes);
    let (header, _) = first_frame(path, number, &mut frames)?;
    if header.is_merged {
        index.clear();
    }
    let mut count = 0;
    for frame in frames.by_ref() {
        count += apply_frame(path, &file, &frame, index, |_, _| {})?;
    }
    if frames.valid < bytes.len() || count != header.records {
        return Err(damaged(path, frames.valid, "not all that was written is there"));
    }
    check_next_numbers(path, &header, |log, next| index.ends_at(log, next))
}

struct JournalContent {
    file: Arc<File>,
    length: u64,
    check: frame::Check,
    seq: u64,
    records_end: u64,
    is_old: bool,
    records: Records,
}

fn read_journal(
    path: &Path,
    number: u64,
    marker_record: Option<MarkerRecord>,
    index: &Index,
) -> Result<JournalContent, StoreError> {
    let bytes = read(path)?;
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = Arc::new(file.map_err(|source| StoreError::Open { path: path.to_owned(), source })?);
    let mut frames = Frames::new(&bytes);
    let (header, first) = first_frame(path, number, &mut frames)?;
    check_next_numbers(path, &header, |log, next| index.continues_at(log, next))?;
    let mut records = BTreeMap::new();
    let mut seq = first.seq;
    let mut check = first.check;
    let mut records_end = frames.valid;
    let mut count = 0;
    while let Some(frame) = frames.next() {
        let is_initial = frame.seq == first.seq && seq == first.seq;
        if !is_initial && frame.seq != seq + 1 {
            return Err(damaged(path, frame.at, "a change is missing before it"));
        }
        let ops = apply_frame(path, &file, &frame, index, |key, value| match value {
            Some(value) => drop(records.insert(key.to_vec(), value.to_vec())),
            None => drop(records.remove(key)),
        })?;
        if is_initial {
            records_end = frames.valid;
            count += ops;
        }
        (seq, check) = (frame.seq, frame.check);
    }
    if count != header.records {
        return Err(damaged(path, records_end, "not all records of its beginning are there"));
    }
    let has_partial_frame = frames.valid < bytes.len();
    match marker_record {
        Some(marker_record) if seq < marker_record.seq => {
            return Err(damaged(
                path,
                frames.valid,
                "changes that were acknowledged are missing or altered there",
            ));
        }
        None if has_partial_frame => {
            return Err(damaged(path, frames.valid, "it ends in an incomplete change"));
        }
        _ => {}
    }
    if has_partial_frame {
        let dropped = bytes.len() - frames.valid;
        tracing::info!(bytes = dropped, "dropped an unacknowledged change at the end of the store");
    }
    let is_old = header.version != VERSION;
    Ok(JournalContent {
        file,
        length: frames.valid as u64,
        check,
        seq,
        records_end: records_end as u64,
        is_old,
        records,
    })
}

/// Applies a frame: numbered records to the index, others through `change`. Returns the number of
/// changed records.
fn apply_frame(
    path: &Path,
    file: &Arc<File>,
    frame: &Frame<'_>,
    index: &Index,
    mut change: impl FnMut(&[u8], Option<&[u8]>),
) -> Result<u64, StoreError> {
    let mut count = 0;
    for op in frame::ops(frame.body) {
        let op = op.ok_or_else(|| damaged(path, frame.at, "not a change"))?;
        count += 1;
        match (Log::parse_key(op.key), op.value) {
            (Some((log, number)), Some((_, range))) => {
                let at = (frame.at + range.start) as u64;
                if !index.push(
                    log,
                    number,
                    ValueLocation { file: file.clone(), at, length: range.len() },
                ) {
                    return Err(damaged(path, frame.at, "a later numbered record is before it"));
                }
            }
            (Some((log, number)), None) => index.remove(log, number),
            (None, value) => change(op.key, value.map(|(value, _)| value)),
        }
    }
    Ok(count)
}

fn first_frame<'a>(
    path: &Path,
    number: u64,
    frames: &mut Frames<'a>,
) -> Result<(Header, Frame<'a>), StoreError> {
    let frame = frames.next().ok_or_else(|| damaged(path, 0, "it has no beginning"))?;
    let version = |_| damaged(path, frame.at, "its beginning is not understood");
    let header: Header = serde_json::from_slice(frame.body).map_err(version)?;
    if !READABLE.contains(&header.version.as_str()) {
        return Err(StoreError::Version { found: header.version });
    }
    if header.number != number {
        return Err(damaged(path, frame.at, "it is another file of the store, or was renamed"));
    }
    Ok((header, frame))
}

/// Checks the next number of each kind of numbered records.
fn check_next_numbers(
    path: &Path,
    header: &Header,
    is_expected: impl Fn(Log, u64) -> bool,
) -> Result<(), StoreError> {
    for log in Log::all() {
        let next = header.next.get(log.prefix()).copied().unwrap_or(0);
        if !is_expected(log, next) {
            return Err(damaged(path, 0, "numbered records before it are missing"));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => damaged(path, 0, "it is missing"),
        _ => StoreError::Open { path: path.to_owned(), source },
    })
}

fn damaged(path: &Path, at: usize, what: &'static str) -> StoreError {
    StoreError::Broken { path: PathBuf::from(path), at, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_lock_is_free_after_close_despite_inherited_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock_folder(dir.path()).unwrap();
        assert!(matches!(lock_folder(dir.path()), Err(StoreError::Held { .. })));
        let _copy = lock.0.try_clone().unwrap();
        drop(lock);
        lock_folder(dir.path()).unwrap();
    }
}
