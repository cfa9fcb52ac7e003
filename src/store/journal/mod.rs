//! The journal: a map of keys to values that is a file of changes, each flushed before it is acknowledged.
//!
//!     store/journal-<N>     all records as they were when it began, then every change since, one frame each
//!     store/numbered-<N>    numbered records (events) of the journal N, which has ended
//!     store/acknowledged    up to where changes were acknowledged
//!     store/lock            held by the meshd that has it open
//!
//! **Change.** A frame is appended and flushed by `fdatasync`, many changes together; then the [witness] says that it is there, and
//! only then is anybody told. A write that fails is done again at the same place at the next flush, so a disk that was full goes on by
//! itself once there is room.
//!
//! **Renewal.** A journal that has grown long is written anew: first its numbered records, then all other records as the beginning of
//! the next journal, each beside its place, flushed, renamed. Then the old one goes.
//!
//! **Opening** reads and checks every byte. A journal may end in half a frame only beyond what the witness says: that is what a crash
//! leaves, and it is cut off. Anything else that is not as it was written is refused by file and place, and nothing is changed.

mod files;
mod frame;
mod numbered;
mod open;
mod witness;

#[cfg(test)]
mod tests;

pub use numbered::{AUDIT, EVENTS, Log, Newest};

use super::VERSION;
use crate::fail;
use files::{Header, Kind, write_whole};
use frame::{Check, Frames, HEAD};
use numbered::{Index, Place};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use witness::Witness;

/// A journal is written anew when it has grown by so many bytes, and to twice its size.
const RENEW_AFTER: u64 = 32 << 20;

/// A change in the making: all of it happens, or nothing.
#[derive(Debug, Default)]
pub struct Batch {
    body: Vec<u8>,
    numbered: Vec<(Log, u64, usize, usize)>,
}

impl Batch {
    /// A record has this value from now on.
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        frame::put(&mut self.body, key, value);
        if let Some((log, number)) = Log::of(key) {
            self.numbered.push((log, number, self.body.len() - value.len(), value.len()));
        }
    }

    /// A record is no more.
    pub fn remove(&mut self, key: impl AsRef<[u8]>) {
        frame::remove(&mut self.body, key.as_ref());
    }
}

/// All records but the numbered ones.
pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    waiting: Mutex<Waiting>,
    disk: Mutex<Disk>,
    index: Index,
    _lock: File,
}

/// Changes that no flush has taken yet.
#[derive(Debug, Default)]
struct Waiting {
    /// The last change of all.
    seq: u64,
    batches: Vec<Batch>,
}

/// The journal that is written to.
#[derive(Debug)]
struct Disk {
    file: Arc<File>,
    number: u64,
    /// Bytes that are flushed.
    length: u64,
    /// The last change that is flushed.
    seq: u64,
    /// The check of the last frame, also of one that is still to be written.
    check: Check,
    /// Frames that no write has taken yet, or that one could not write: they stand after `length`.
    unwritten: Vec<u8>,
    unindexed: Vec<(Log, u64, Place)>,
    last: u64,
    renew_at: u64,
    witness: Witness,
    /// The first numbered file that is needed.
    first: u64,
}

/// What a flush came to.
#[derive(Clone, Copy, Debug)]
pub struct Flushed {
    /// Everything up to this change is on the disk.
    pub seq: u64,
    /// The journal is long: [`Journal::renew`] it.
    pub is_long: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Takes a change; gives its number. It is on the disk after a flush.
    pub fn append(&self, batch: Batch) -> u64 {
        let mut waiting = lock(&self.waiting);
        waiting.seq += 1;
        waiting.batches.push(batch);
        waiting.seq
    }

    /// The last change that was taken.
    pub fn seq(&self) -> u64 {
        lock(&self.waiting).seq
    }

    /// The number that the next numbered record has.
    pub fn next(&self, log: Log) -> u64 {
        self.index.next(log)
    }

    /// Numbered records from `first` on, the newest first: those that are on the disk.
    pub fn newest(&self, log: Log, first: u64) -> Newest<'_> {
        self.index.newest(log, first)
    }

    /// Writes and flushes every change that was taken before. Blocks.
    ///
    /// # Errors
    /// The disk is full, read-only or broken. Nothing is lost by it: the next flush tries again.
    pub fn flush(&self) -> io::Result<Flushed> {
        let mut disk = lock(&self.disk);
        self.flush_to(&mut disk)?;
        Ok(Flushed { seq: disk.seq, is_long: disk.length >= disk.renew_at })
    }

    fn flush_to(&self, disk: &mut Disk) -> io::Result<()> {
        let (batches, last) = {
            let mut waiting = lock(&self.waiting);
            (std::mem::take(&mut waiting.batches), waiting.seq)
        };
        disk.take(batches, last);
        if !disk.unwritten.is_empty() {
            disk.write()?;
            for (log, number, place) in disk.unindexed.drain(..) {
                if !self.index.push(log, number, place) {
                    return Err(io::Error::other(format!("the numbered record {number} is out of order")));
                }
            }
        }
        if disk.witness.said().seq != disk.seq {
            disk.witness.say(disk.seq, disk.first)?;
            fail::point("store-acknowledged");
        }
        Ok(())
    }

    /// Writes a long journal anew. Blocks, and flushes wait meanwhile.
    ///
    /// # Errors
    /// The disk is full, read-only or broken. The old journal goes on; it is tried again when it has grown further.
    pub fn renew(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        disk.renew_at = disk.length + renew_after() / 4;
        self.flush_to(&mut disk)?;
        let mut bytes = vec![0; usize::try_from(disk.length).map_err(io::Error::other)?];
        disk.file.read_exact_at(&mut bytes, 0)?;
        let Some((records, numbered)) = split(&bytes) else {
            return Err(io::Error::other(format!("{} is damaged", Kind::Journal.name(disk.number))));
        };
        let next = Log::all().map(|log| (log.prefix().to_owned(), self.index.next(log))).collect();
        let mut header = Header { version: VERSION.into(), number: disk.number, records: numbered.len() as u64, next };
        let kept = write_whole(&self.dir, Kind::Numbered, disk.seq, &header, numbered.into_iter())?;
        header.number += 1;
        header.records = records.len() as u64;
        let fresh = write_whole(&self.dir, Kind::Journal, disk.seq, &header, records.into_iter())?;
        let old = disk.number;
        disk.turn_to(header.number, fresh.file, fresh.length, fresh.check);
        fail::point("store-renewed");
        for (log, number, place) in kept.numbered {
            self.index.moved(log, number, place);
        }
        fs::remove_file(Kind::Journal.path(&self.dir, old))?;
        self.forget(&mut disk)
    }

    /// Removes files of numbered records of which none is kept any more.
    fn forget(&self, disk: &mut Disk) -> io::Result<()> {
        let numbers = files::numbers(&self.dir, Kind::Numbered)?;
        let mut gone = Vec::new();
        // The last one stays: it says where the numbers of all kinds have come to.
        for number in numbers.iter().copied().take(numbers.len().saturating_sub(1)) {
            let header = open::header(&Kind::Numbered.path(&self.dir, number))?;
            let is_over = |log: Log| header.next.get(log.prefix()).is_none_or(|next| *next <= self.index.first(log));
            if !Log::all().all(is_over) {
                break;
            }
            gone.push(number);
        }
        let Some(last) = gone.last() else { return Ok(()) };
        disk.first = last + 1;
        disk.witness.insist(disk.seq, disk.first)?;
        gone.iter().try_for_each(|number| fs::remove_file(Kind::Numbered.path(&self.dir, *number)))
    }

    /// Flushes what is left, and makes the witness as durable as what it speaks of. Blocks.
    pub fn close(&self) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        self.flush_to(&mut disk)?;
        let (seq, first) = (disk.seq, disk.first);
        disk.witness.insist(seq, first)
    }
}

impl Disk {
    /// Makes frames of changes, the last of which has this number.
    fn take(&mut self, batches: Vec<Batch>, last: u64) {
        let begin = last + 1 - batches.len() as u64;
        self.last = last;
        for (seq, batch) in (begin..).zip(batches) {
            let at = self.length + (self.unwritten.len() + HEAD) as u64;
            self.check = frame::write(&mut self.unwritten, self.check, seq, &batch.body);
            let place = |at_in, length| Place { file: self.file.clone(), at: at + at_in as u64, length };
            let numbered = batch.numbered.into_iter();
            self.unindexed.extend(numbered.map(|(log, number, at, length)| (log, number, place(at, length))));
        }
    }

    /// After an error the same bytes are written to the same place again: a failed `fdatasync` may have forgotten them.
    fn write(&mut self) -> io::Result<()> {
        fail::point("store-write");
        if fail::here("store-half") {
            let half = &self.unwritten[..self.unwritten.len() / 2];
            drop(self.file.write_all_at(half, self.length));
            fail::die();
        }
        self.file.write_all_at(&self.unwritten, self.length)?;
        fail::point("store-written");
        self.file.sync_data()?;
        fail::point("store-flushed");
        self.length += self.unwritten.len() as u64;
        self.unwritten.clear();
        self.seq = self.last;
        Ok(())
    }

    fn turn_to(&mut self, number: u64, file: Arc<File>, length: u64, check: Check) {
        (self.number, self.file, self.length, self.check) = (number, file, length, check);
        self.renew_at = renew_at(length);
    }
}

fn renew_after() -> u64 {
    fail::bound("RENEW_AFTER", RENEW_AFTER)
}

/// At which length a journal is renewed that begins with so many bytes of records.
fn renew_at(begin: u64) -> u64 {
    begin + begin.max(renew_after())
}

type Map<'a> = BTreeMap<&'a [u8], &'a [u8]>;
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// All records of a journal, and its numbered ones in their order; `None` if it is damaged.
fn split(bytes: &[u8]) -> Option<(Map<'_>, Pairs<'_>)> {
    let (mut records, mut numbered) = (BTreeMap::new(), Vec::new());
    let mut frames = Frames::of(bytes);
    for frame in frames.by_ref().skip(1) {
        for op in frame::ops(frame.body) {
            let op = op?;
            match op.value {
                Some((value, _)) if Log::of(op.key).is_some() => numbered.push((op.key, value)),
                Some((value, _)) => drop(records.insert(op.key, value)),
                None => drop(records.remove(op.key)),
            }
        }
    }
    (frames.good == bytes.len()).then_some((records, numbered))
}
