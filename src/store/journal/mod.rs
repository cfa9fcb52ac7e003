//! The journal: a key-value map stored as a log of changes.
//!
//! | module | content |
//! | --- | --- |
//! | `batch` | an atomic change, before it is written |
//! | `commit_marker` | the commit marker: a small file with the position of the last acknowledged change |
//! | `files` | file names of the journal, and atomic writes |
//! | `frame` | the frame format of the journal: each frame carries a checksum over all frames before it |
//! | `numbered` | append-only records with sequence numbers, such as events, read from the disk |
//! | `follow` | reads the acknowledged changes after a position |
//! | `open` | opens a journal: verifies every byte, and distinguishes a crash from damage by the commit marker |
//!
//! ```text
//! store/journal-<N>     all records at its creation, then every change, one frame each
//! store/numbered-<N>    numbered records (events) of the finished journal N
//! store/acknowledged    the commit marker: the position of the last acknowledged change
//! store/lock            held by the meshd that uses the store
//! ```
//!
//! **Change.** Frames are appended and flushed by `fdatasync`, many changes together. Then the
//! commit marker advances, and only then are writers acknowledged. What a failed write left is cut
//! off, so none of its changes exists; the journal continues when the disk has room.
//!
//! **Compaction.** A journal that has grown long is replaced: its numbered records become a file,
//! all other records start the next journal. Each file is written under another name, flushed and
//! renamed; then the old journal is deleted. When most records of the numbered files are deleted,
//! the rest is merged into one file.
//!
//! **Opening** reads and verifies every byte. Half a frame behind the commit marker is the trace of
//! a crash and is cut off. Any other damage is refused with file and position, and nothing is
//! changed.

mod batch;
mod commit_marker;
mod files;
mod follow;
mod frame;
mod numbered;
mod open;

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use numbered::{AUDIT, EVENTS, Log};

use super::{
    VERSION,
    change_log::{ChangeLog, LogSnapshot, LoggedChange, NumberedRecords, Position, Records},
};
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

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// The records that opening read, until they are loaded.
    opened: Mutex<Records>,
    disk: Mutex<Disk>,
    index: Index,
    _lock: open::FolderLock,
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
    /// The checksum of the last flushed frame.
    check: Check,
    /// A failed write may have left bytes after `length`, or a record in the marker.
    is_torn: bool,
    compact_at: u64,
    marker: CommitMarker,
    /// Number of the first file of numbered records in use.
    first: u64,
}

/// Encoded changes that are not on the disk.
struct EncodedChanges {
    bytes: Vec<u8>,
    /// Number of the last change.
    seq: u64,
    /// The checksum of the last frame.
    check: Check,
    /// Their changes of numbered records, in order; `None` removes the record.
    numbered: Vec<(Log, u64, Option<ValueLocation>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChangeLog for Journal {
    fn append(&self, changes: Vec<Batch>) -> io::Result<Position> {
        let mut disk = lock(&self.disk);
        disk.repair()?;
        self.check_order(&changes)?;
        let encoded = disk.encode(changes);
        disk.write(&encoded).inspect_err(|_| {
            disk.is_torn = true;
            // The next change repeats a repair that fails.
            let _ = disk.repair();
        })?;
        for (log, number, location) in encoded.numbered {
            match location {
                Some(location) => {
                    let is_in_order = self.index.push(log, number, location);
                    debug_assert!(is_in_order, "the order was checked");
                }
                None => self.index.remove(log, number),
            }
        }
        Ok(Position(disk.seq))
    }

    fn load(&self) -> Records {
        std::mem::take(&mut lock(&self.opened))
    }

    fn snapshot(&self) -> io::Result<LogSnapshot> {
        self.copy_files()
    }

    fn changes_after(&self, after: Position) -> io::Result<Option<Vec<LoggedChange>>> {
        follow::changes_after(&lock(&self.disk), after)
    }

    fn next_number(&self, log: Log) -> u64 {
        self.index.next(log)
    }

    fn newest(&self, log: Log, first: u64, end: u64) -> NumberedRecords<'_> {
        Box::new(self.index.newest(log, first, end))
    }

    fn oldest(&self, log: Log, first: u64) -> NumberedRecords<'_> {
        Box::new(self.index.oldest(log, first))
    }

    fn forget(&self, log: Log, numbers: &mut dyn Iterator<Item = u64>) {
        numbers.for_each(|number| self.index.remove(log, number));
    }

    fn check(&self) -> io::Result<()> {
        lock(&self.disk).repair()?;
        self.has_space()
    }

    fn needs_compaction(&self) -> bool {
        let disk = lock(&self.disk);
        disk.length >= disk.compact_at
    }

    fn compact(&self) -> io::Result<()> {
        self.replace_journal()
    }

    fn close(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        disk.repair()?;
        let seq = disk.seq;
        let first = disk.first;
        disk.marker.write_twice(seq, first)
    }
}

impl Journal {
    /// Fails if the number of a new numbered record is not above all others of its kind.
    fn check_order(&self, changes: &[Batch]) -> io::Result<()> {
        let mut next: BTreeMap<Log, u64> =
            Log::all().map(|log| (log, self.index.next(log))).collect();
        let added =
            changes.iter().flat_map(|batch| &batch.numbered).filter(|(.., range)| range.is_some());
        for (log, number, _) in added {
            let next = next.entry(*log).or_default();
            if *number < *next {
                return Err(io::Error::other(format!(
                    "the numbered record {number} is out of order"
                )));
            }
            *next = *number + 1;
        }
        Ok(())
    }

    /// Replaces a long journal. Changes wait meanwhile.
    fn replace_journal(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        disk.compact_at = disk.length + compact_after() / 4;
        disk.repair()?;
        let mut bytes = vec![0; usize::try_from(disk.length).map_err(io::Error::other)?];
        disk.file.read_exact_at(&mut bytes, 0)?;
        let Some((records, numbered)) = split(&bytes) else {
            return Err(io::Error::other(format!(
                "{} is damaged",
                Kind::Journal.name(disk.number)
            )));
        };
        let next = Log::all().map(|log| (log.prefix().to_owned(), self.index.next(log))).collect();
        let is_merged = self.is_worth_merging(&disk)?;
        let mut header =
            Header { version: VERSION.into(), number: disk.number, records: 0, next, is_merged };
        let numbered_file = if is_merged {
            header.records = Log::all().map(|log| self.index.size(log).0).sum();
            let all = Log::all().flat_map(|log| {
                self.index
                    .all(log)
                    .map(move |record| record.map(|(number, value)| (log.key(number), Some(value))))
            });
            write_atomically(&self.dir, Kind::Numbered, disk.seq, &header, all)?
        } else {
            header.records = numbered.len() as u64;
            write_atomically(
                &self.dir,
                Kind::Numbered,
                disk.seq,
                &header,
                numbered.into_iter().map(Ok),
            )?
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
        previous
            .iter()
            .try_for_each(|number| fs::remove_file(Kind::Numbered.path(&self.dir, *number)))
    }

    /// Fails if the disk is full or read-only.
    fn has_space(&self) -> io::Result<()> {
        let disk = rustix::fs::statvfs(&self.dir)?;
        if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_SPACE {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Disk {
    /// Encodes changes as frames after the last flushed one.
    fn encode(&self, changes: Vec<Batch>) -> EncodedChanges {
        let mut encoded = EncodedChanges {
            bytes: Vec::new(),
            seq: self.seq,
            check: self.check,
            numbered: Vec::new(),
        };
        for batch in changes {
            let at = self.length + (encoded.bytes.len() + HEAD) as u64;
            encoded.seq += 1;
            encoded.check =
                frame::write(&mut encoded.bytes, encoded.check, encoded.seq, &batch.body);
            let location = |(at_in, length)| ValueLocation {
                file: self.file.clone(),
                at: at + at_in as u64,
                length,
            };
            let numbered = batch.numbered.into_iter();
            encoded
                .numbered
                .extend(numbered.map(|(log, number, range)| (log, number, range.map(location))));
        }
        encoded
    }

    /// Writes and flushes changes, then the marker that acknowledges them.
    fn write(&mut self, encoded: &EncodedChanges) -> io::Result<()> {
        failpoint::point("store-write");
        if failpoint::is_reached("store-half") {
            let half = &encoded.bytes[..encoded.bytes.len() / 2];
            drop(self.file.write_all_at(half, self.length));
            failpoint::die();
        }
        self.file.write_all_at(&encoded.bytes, self.length)?;
        failpoint::point("store-written");
        self.file.sync_data()?;
        failpoint::point("store-flushed");
        self.marker.write(encoded.seq, self.first)?;
        failpoint::point("store-acknowledged");
        self.length += encoded.bytes.len() as u64;
        (self.seq, self.check) = (encoded.seq, encoded.check);
        Ok(())
    }

    /// Cuts off what a failed write left. The marker first: it is never ahead of the journal.
    fn repair(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.marker.write(self.seq, self.first)?;
            self.file.set_len(self.length)?;
            self.file.sync_data()?;
            self.is_torn = false;
        }
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
    let mut records = BTreeMap::new();
    let mut numbered = BTreeMap::new();
    let mut frames = Frames::new(bytes);
    let header: Header = serde_json::from_slice(frames.next()?.body).ok()?;
    let is_own =
        |log: Log, number: u64| header.next.get(log.prefix()).is_none_or(|first| number >= *first);
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
