//! Append-only records with sequence numbers, such as events, read from the disk.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::{Arc, PoisonError, RwLock},
};

/// A kind of numbered records. Their keys are `<kind>/<number, 8 bytes big-endian>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Log(usize);

/// The record of events.
pub const EVENTS: Log = Log(0);
/// The audit log.
pub const AUDIT: Log = Log(1);

/// Prefixes of keys. [`Retained`](crate::retention::Retained) bounds the number of records.
const LOGS: [&str; 2] = ["event/", "audit/"];
/// Number of locations that are looked up at once.
const CHUNK: usize = 256;

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix())
    }
}

impl Log {
    pub(super) fn all() -> impl Iterator<Item = Log> {
        (0..LOGS.len()).map(Log)
    }

    pub(super) fn prefix(self) -> &'static str {
        LOGS[self.0]
    }

    pub fn key(self, number: u64) -> Vec<u8> {
        [self.prefix().as_bytes(), &number.to_be_bytes()].concat()
    }

    /// Parses the key of a numbered record.
    pub(super) fn parse_key(key: &[u8]) -> Option<(Log, u64)> {
        Log::all().find_map(|log| {
            let number: [u8; 8] = key.strip_prefix(log.prefix().as_bytes())?.try_into().ok()?;
            Some((log, u64::from_be_bytes(number)))
        })
    }
}

/// The position of a value on the disk.
#[derive(Clone, Debug)]
pub(super) struct ValueLocation {
    pub(super) file: Arc<File>,
    pub(super) at: u64,
    pub(super) length: usize,
}

impl ValueLocation {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.length];
        self.file.read_exact_at(&mut value, self.at)?;
        Ok(value)
    }
}

/// Locations of the records of one kind. Numbers increase; those of removed records are not reused.
#[derive(Debug, Default)]
struct LogIndex {
    /// The number of the next record; `None` before the first file is read.
    next: Option<u64>,
    locations: BTreeMap<u64, ValueLocation>,
    /// Bytes of all values.
    bytes: u64,
}

impl LogIndex {
    fn next(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    fn remove(&mut self, number: u64) {
        if let Some(location) = self.locations.remove(&number) {
            self.bytes -= location.length as u64;
        }
    }
}

/// Locations of all numbered records.
#[derive(Debug)]
pub(super) struct Index(Vec<RwLock<LogIndex>>);

impl Default for Index {
    fn default() -> Self {
        Index(LOGS.iter().map(|_| RwLock::default()).collect())
    }
}

impl Index {
    fn read_log<R>(&self, log: Log, read_index: impl FnOnce(&LogIndex) -> R) -> R {
        read_index(&self.0[log.0].read().unwrap_or_else(PoisonError::into_inner))
    }

    fn edit<R>(&self, log: Log, edit: impl FnOnce(&mut LogIndex) -> R) -> R {
        edit(&mut self.0[log.0].write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn next(&self, log: Log) -> u64 {
        self.read_log(log, LogIndex::next)
    }

    /// Number of records, and the bytes of their values.
    pub(super) fn size(&self, log: Log) -> (u64, u64) {
        self.read_log(log, |log_index| (log_index.locations.len() as u64, log_index.bytes))
    }

    /// Checks that a journal continues at this number. False if the known records end elsewhere.
    #[must_use]
    pub(super) fn continues_at(&self, log: Log, number: u64) -> bool {
        self.edit(log, |log_index| *log_index.next.get_or_insert(number) == number)
    }

    /// Sets the next number; the last records before it may have been removed. False if a later
    /// record is known.
    #[must_use]
    pub(super) fn ends_at(&self, log: Log, number: u64) -> bool {
        self.edit(log, |log_index| {
            let is_in_order = log_index.next() <= number;
            log_index.next = Some(log_index.next().max(number));
            is_in_order
        })
    }

    /// Adds a record. Returns false if a later one is known.
    #[must_use]
    pub(super) fn push(&self, log: Log, number: u64, location: ValueLocation) -> bool {
        self.edit(log, |log_index| {
            if number < log_index.next() {
                return false;
            }
            log_index.next = Some(number + 1);
            log_index.bytes += location.length as u64;
            log_index.locations.insert(number, location);
            true
        })
    }

    pub(super) fn remove(&self, log: Log, number: u64) {
        self.edit(log, |log_index| log_index.remove(number));
    }

    /// Removes all records: a merged file follows.
    pub(super) fn clear(&self) {
        Log::all().for_each(|log| self.edit(log, |log_index| *log_index = LogIndex::default()));
    }

    /// Sets the new location of a record, unless it was removed.
    pub(super) fn relocate(&self, log: Log, number: u64, location: ValueLocation) {
        self.edit(log, |log_index| {
            if let Some(stored) = log_index.locations.get_mut(&number) {
                *stored = location;
            }
        });
    }

    /// Every record of a kind with its value, the oldest first.
    pub(super) fn all(&self, log: Log) -> impl Iterator<Item = io::Result<(u64, Vec<u8>)>> {
        let locations: Vec<_> = self.read_log(log, |log_index| {
            log_index
                .locations
                .iter()
                .map(|(number, location)| (*number, location.clone()))
                .collect()
        });
        locations.into_iter().map(|(number, location)| Ok((number, location.read()?)))
    }

    /// Records from `first` on and before `end`, the newest first.
    pub(super) fn newest(&self, log: Log, first: u64, end: u64) -> Newest<'_> {
        let end = end.min(self.next(log));
        Newest { index: self, log, first, end, chunk: Vec::new() }
    }

    /// Records from `first` on, the oldest first.
    pub(super) fn oldest(&self, log: Log, first: u64) -> Oldest<'_> {
        Oldest { index: self, log, next: Some(first), chunk: Vec::new() }
    }
}

/// Reads numbered records backwards. Records removed meanwhile are skipped.
pub(super) struct Newest<'a> {
    index: &'a Index,
    log: Log,
    first: u64,
    /// Records from here on were looked up.
    end: u64,
    chunk: Vec<(u64, ValueLocation)>,
}

impl Iterator for Newest<'_> {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() {
            self.chunk = self.index.read_log(self.log, |log_index| {
                let wanted = self.first..self.end.max(self.first);
                let newest = log_index.locations.range(wanted).rev().take(CHUNK);
                let mut chunk: Vec<_> =
                    newest.map(|(number, location)| (*number, location.clone())).collect();
                chunk.reverse();
                chunk
            });
            self.end = self.chunk.first()?.0;
        }
        let (number, location) = self.chunk.pop()?;
        Some(location.read().map(|value| (number, value)))
    }
}

/// Reads numbered records forwards. Records added or removed meanwhile may be skipped.
pub(super) struct Oldest<'a> {
    index: &'a Index,
    log: Log,
    /// Records before it were looked up; `None` after the last possible number.
    next: Option<u64>,
    /// The next record is the last one.
    chunk: Vec<(u64, ValueLocation)>,
}

impl Iterator for Oldest<'_> {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() {
            let first = self.next?;
            self.chunk = self.index.read_log(self.log, |log_index| {
                let oldest = log_index.locations.range(first..).take(CHUNK);
                let mut chunk: Vec<_> =
                    oldest.map(|(number, location)| (*number, location.clone())).collect();
                chunk.reverse();
                chunk
            });
            self.next = self.chunk.first()?.0.checked_add(1);
        }
        let (number, location) = self.chunk.pop()?;
        Some(location.read().map(|value| (number, value)))
    }
}
