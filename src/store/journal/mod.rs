//! The journal: a key-value map stored as a log of changes.
//!
//! | module | content |
//! | --- | --- |
//! | `commit_marker` | the commit marker: a small file with the position of the last acknowledged change |
//! | `files` | file names of the journal, and atomic writes |
//! | `frame` | the frame format of the journal: each frame carries a checksum over all frames before it |
//! | `numbered` | append-only records with sequence numbers, such as events, read from the disk |
//! | `open` | opens a journal: verifies every byte, and distinguishes a crash from damage by the commit marker |
//!
//! ```text
//! store/journal-<N>     all records at its creation, then every change, one frame each
//! store/numbered-<N>    numbered records (events) of the finished journal N
//! store/acknowledged    the commit marker: the position of the last acknowledged change
//! store/lock            held by the meshd that uses the store
//! ```
//!
//! **Change.** Frames are appended and flushed by `fdatasync`, many changes together. Then the commit marker advances, and only then are
//! writers acknowledged. The next flush repeats a failed write at the same position, so the journal recovers when the disk has room again.
//!
//! **Compaction.** A journal that has grown long is replaced: its numbered records become a file, all other records start the next journal.
//! Each file is written under another name, flushed and renamed; then the old journal is deleted. When most records of the numbered files
//! are deleted, the rest is merged into one file.
//!
//! **Opening** reads and verifies every byte. Half a frame behind the commit marker is the trace of a crash and is cut off. Any other
//! damage is refused with file and position, and nothing is changed.

mod commit_marker;
mod files;
mod frame;
mod numbered;
mod open;

#[cfg(test)]
mod tests;

pub use numbered::{AUDIT, EVENTS, Log, Newest, Oldest};

use super::VERSION;
use commit_marker::CommitMarker;
use files::{Header, Kind, write_atomically};
use frame::{Check, Frames, HEAD};
use meshd_types::failpoint;
use numbered::{Index, ValueLocation};
use rustix::fs::StatVfsMountFlags;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A journal is compacted when it has grown by this many bytes, and to twice its initial size.
const COMPACT_AFTER: u64 = 32 << 20;

/// Minimum free space of the disk, in bytes; with less, the next change may fail.
const MIN_SPACE: u64 = 64 << 10;

/// Offset and length of a value in the body of a change; `None`: the record is removed.
type BodyRange = Option<(usize, usize)>;

/// An atomic change.
#[derive(Debug, Default)]
pub struct Batch {
    body: Vec<u8>,
    numbered: Vec<(Log, u64, BodyRange)>,
}

impl Batch {
    /// Sets the value of a record.
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        frame::put(&mut self.body, key, value);
        if let Some((log, number)) = Log::parse_key(key) {
            self.numbered.push((log, number, Some((self.body.len() - value.len(), value.len()))));
        }
    }

    /// Removes a record.
    pub fn remove(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        frame::remove(&mut self.body, key);
        if let Some((log, number)) = Log::parse_key(key) {
            self.numbered.push((log, number, None));
        }
    }
}

/// All records but the numbered ones.
pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    unflushed: Mutex<UnflushedChanges>,
    disk: Mutex<Disk>,
    index: Index,
    _lock: open::FolderLock,
}

/// Changes that no flush has encoded yet.
#[derive(Debug, Default)]
struct UnflushedChanges {
    /// Number of the last change.
    seq: u64,
    batches: Vec<Batch>,
}

/// The current journal file.
#[derive(Debug)]
struct Disk {
    file: Arc<File>,
    number: u64,
    /// Flushed bytes.
    length: u64,
    /// Number of the last flushed change.
    seq: u64,
    /// The checksum of the last encoded frame.
    check: Check,
    /// Encoded frames after `length` that are not on the disk.
    unwritten: Vec<u8>,
    /// Their changes of numbered records, in order; `None` removes the record.
    unindexed: Vec<(Log, u64, Option<ValueLocation>)>,
    last: u64,
    compact_at: u64,
    marker: CommitMarker,
    /// Number of the first file of numbered records in use.
    first: u64,
}

/// The result of a flush.
#[derive(Clone, Copy, Debug)]
pub struct Flushed {
    /// Everything up to this change is on the disk.
    pub seq: u64,
    /// The journal is long: call [`Journal::compact`].
    pub needs_compaction: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Appends a change and returns its number. It is on the disk after a flush.
    pub fn append(&self, batch: Batch) -> u64 {
        let mut unflushed = lock(&self.unflushed);
        unflushed.seq += 1;
        unflushed.batches.push(batch);
        unflushed.seq
    }

    /// Number of the last appended change.
    pub fn seq(&self) -> u64 {
        lock(&self.unflushed).seq
    }

    /// The number of the next numbered record.
    pub fn next(&self, log: Log) -> u64 {
        self.index.next(log)
    }

    /// Flushed numbered records from `first` to before `end`, the newest first.
    pub fn newest(&self, log: Log, first: u64, end: u64) -> Newest<'_> {
        self.index.newest(log, first, end)
    }

    /// Flushed numbered records from `first` on, the oldest first.
    pub fn oldest(&self, log: Log, first: u64) -> Oldest<'_> {
        self.index.oldest(log, first)
    }

    /// Every numbered record of a kind, the oldest first.
    pub fn all(&self, log: Log) -> impl Iterator<Item = io::Result<(u64, Vec<u8>)>> {
        self.index.all(log)
    }

    /// Writes and flushes every appended change. Blocks. After an error, the next flush repeats the write.
    pub fn flush(&self) -> io::Result<Flushed> {
        let mut disk = lock(&self.disk);
        self.flush_to(&mut disk)?;
        Ok(Flushed { seq: disk.seq, needs_compaction: disk.length >= disk.compact_at })
    }

    fn flush_to(&self, disk: &mut Disk) -> io::Result<()> {
        let (batches, last) = {
            let mut unflushed = lock(&self.unflushed);
            (std::mem::take(&mut unflushed.batches), unflushed.seq)
        };
        disk.encode(batches, last);
        if !disk.unwritten.is_empty() {
            disk.write()?;
            for (log, number, location) in disk.unindexed.drain(..) {
                let Some(location) = location else {
                    self.index.remove(log, number);
                    continue;
                };
                if !self.index.push(log, number, location) {
                    return Err(io::Error::other(format!("the numbered record {number} is out of order")));
                }
            }
        }
        if disk.marker.record().seq != disk.seq {
            disk.marker.write(disk.seq, disk.first)?;
            failpoint::point("store-acknowledged");
        }
        Ok(())
    }

    /// Replaces a long journal. Blocks, and flushes wait meanwhile. After an error, the old journal continues; compaction is repeated when
    /// it has grown further.
    pub fn compact(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        disk.compact_at = disk.length + compact_after() / 4;
        self.flush_to(&mut disk)?;
        let mut bytes = vec![0; usize::try_from(disk.length).map_err(io::Error::other)?];
        disk.file.read_exact_at(&mut bytes, 0)?;
        let Some((records, numbered)) = split(&bytes) else {
            return Err(io::Error::other(format!("{} is damaged", Kind::Journal.name(disk.number))));
        };
        let next = Log::all().map(|log| (log.prefix().to_owned(), self.index.next(log))).collect();
        let is_merged = self.is_worth_merging(&disk)?;
        let mut header = Header { version: VERSION.into(), number: disk.number, records: 0, next, is_merged };
        let numbered_file = if is_merged {
            header.records = Log::all().map(|log| self.index.size(log).0).sum();
            let all = Log::all().flat_map(|log| {
                self.index.all(log).map(move |record| record.map(|(number, value)| (log.key(number), Some(value))))
            });
            write_atomically(&self.dir, Kind::Numbered, disk.seq, &header, all)?
        } else {
            header.records = numbered.len() as u64;
            write_atomically(&self.dir, Kind::Numbered, disk.seq, &header, numbered.into_iter().map(Ok))?
        };
        (header.number, header.is_merged) = (header.number + 1, false);
        header.records = records.len() as u64;
        let all = records.into_iter().map(|(key, value)| Ok((key, Some(value))));
        let temporary = write_atomically(&self.dir, Kind::Journal, disk.seq, &header, all)?;
        let previous = disk.number;
        disk.switch_to(header.number, temporary.file, temporary.length, temporary.check);
        failpoint::point("store-renewed");
        for (log, number, location) in numbered_file.numbered {
            self.index.relocate(log, number, location);
        }
        fs::remove_file(Kind::Journal.path(&self.dir, previous))?;
        if is_merged { self.remove_files_before(&mut disk, previous) } else { Ok(()) }
    }

    /// True if most bytes in the files of numbered records belong to removed records.
    fn is_worth_merging(&self, disk: &Disk) -> io::Result<bool> {
        let mut written = 0;
        for number in disk.first..disk.number {
            written += fs::metadata(Kind::Numbered.path(&self.dir, number))?.len();
        }
        let numbered_file: u64 = Log::all().map(|log| self.index.size(log).1).sum();
        Ok(written > 2 * numbered_file + compact_after())
    }

    /// Removes the files of numbered records before a merged file.
    fn remove_files_before(&self, disk: &mut Disk, merged: u64) -> io::Result<()> {
        let previous: Vec<u64> = (disk.first..merged).collect();
        disk.first = merged;
        disk.marker.write_twice(disk.seq, disk.first)?;
        previous.iter().try_for_each(|number| fs::remove_file(Kind::Numbered.path(&self.dir, *number)))
    }

    /// Removes numbered records from the index.
    pub fn forget(&self, log: Log, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.index.remove(log, number));
    }

    /// Fails if the disk is full or read-only. Blocks.
    pub fn has_space(&self) -> io::Result<()> {
        let disk = rustix::fs::statvfs(&self.dir)?;
        if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_SPACE {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Flushes all changes and the commit marker. Blocks.
    pub fn close(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        self.flush_to(&mut disk)?;
        let (seq, first) = (disk.seq, disk.first);
        disk.marker.write_twice(seq, first)
    }
}

impl Disk {
    /// Encodes changes as frames. `last` is the number of the last change.
    fn encode(&mut self, batches: Vec<Batch>, last: u64) {
        let begin = last + 1 - batches.len() as u64;
        self.last = last;
        for (seq, batch) in (begin..).zip(batches) {
            let at = self.length + (self.unwritten.len() + HEAD) as u64;
            self.check = frame::write(&mut self.unwritten, self.check, seq, &batch.body);
            let location = |(at_in, length)| ValueLocation { file: self.file.clone(), at: at + at_in as u64, length };
            let numbered = batch.numbered.into_iter();
            self.unindexed.extend(numbered.map(|(log, number, body_range)| (log, number, body_range.map(location))));
        }
    }

    /// After an error, the next call writes the same bytes at the same position: a failed `fdatasync` may have dropped them.
    fn write(&mut self) -> io::Result<()> {
        failpoint::point("store-write");
        if failpoint::is_reached("store-half") {
            let half = &self.unwritten[..self.unwritten.len() / 2];
            drop(self.file.write_all_at(half, self.length));
            failpoint::die();
        }
        self.file.write_all_at(&self.unwritten, self.length)?;
        failpoint::point("store-written");
        self.file.sync_data()?;
        failpoint::point("store-flushed");
        self.length += self.unwritten.len() as u64;
        self.unwritten.clear();
        self.seq = self.last;
        Ok(())
    }

    fn switch_to(&mut self, number: u64, file: Arc<File>, length: u64, check: Check) {
        (self.number, self.file, self.length, self.check) = (number, file, length, check);
        self.compact_at = compact_at(length);
    }
}

fn compact_after() -> u64 {
    failpoint::bound("RENEW_AFTER", COMPACT_AFTER)
}

/// The length at which a journal with this initial length is compacted.
fn compact_at(begin: u64) -> u64 {
    begin + begin.max(compact_after())
}

type Map<'a> = BTreeMap<&'a [u8], &'a [u8]>;
type Numbered<'a> = BTreeMap<&'a [u8], Option<&'a [u8]>>;

/// Splits a journal into its records and its changes of numbered records. `None` if it is damaged.
fn split(bytes: &[u8]) -> Option<(Map<'_>, Numbered<'_>)> {
    let (mut records, mut numbered) = (BTreeMap::new(), BTreeMap::new());
    let mut frames = Frames::new(bytes);
    let header: Header = serde_json::from_slice(frames.next()?.body).ok()?;
    let is_own = |log: Log, number: u64| header.next.get(log.prefix()).is_none_or(|first| number >= *first);
    for frame in frames.by_ref() {
        for op in frame::ops(frame.body) {
            let op = op?;
            match (Log::parse_key(op.key), op.value) {
                (Some((log, number)), None) if is_own(log, number) => drop(numbered.remove(op.key)),
                (Some(_), value) => drop(numbered.insert(op.key, value.map(|(value, _)| value))),
                (None, Some((value, _))) => drop(records.insert(op.key, value)),
                (None, None) => drop(records.remove(op.key)),
            }
        }
    }
    (frames.valid == bytes.len()).then_some((records, numbered))
}
