//! Append-only records with sequence numbers, such as events, read from the disk.

use std::{
    collections::BTreeMap,
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

/// How their keys begin. How many records of each are kept is decided by [`Retained`](crate::retain::Retained).
const LOGS: [&str; 2] = ["event/", "audit/"];
/// Records whose places are looked up at once.
const CHUNK: usize = 256;

impl Log {
    /// All kinds.
    pub(super) fn all() -> impl Iterator<Item = Log> {
        (0..LOGS.len()).map(Log)
    }

    /// How its keys begin.
    pub(super) fn prefix(self) -> &'static str {
        LOGS[self.0]
    }

    /// The key of one record.
    pub fn key(self, number: u64) -> Vec<u8> {
        [self.prefix().as_bytes(), &number.to_be_bytes()].concat()
    }

    /// Which record has a key, if it is a numbered one.
    pub(super) fn of(key: &[u8]) -> Option<(Log, u64)> {
        Log::all().find_map(|log| {
            let number: [u8; 8] = key.strip_prefix(log.prefix().as_bytes())?.try_into().ok()?;
            Some((log, u64::from_be_bytes(number)))
        })
    }
}

/// Where a value stands.
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

/// The places of all records of one kind. Numbers go up; those of removed records are not used again.
#[derive(Debug, Default)]
struct Row {
    /// The number of the next record; `None` as long as nothing is known of them.
    next: Option<u64>,
    places: BTreeMap<u64, ValueLocation>,
    /// Bytes of all values.
    bytes: u64,
}

impl Row {
    fn next(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    fn remove(&mut self, number: u64) {
        if let Some(place) = self.places.remove(&number) {
            self.bytes -= place.length as u64;
        }
    }
}

/// The places of all numbered records.
#[derive(Debug)]
pub(super) struct Index(Vec<RwLock<Row>>);

impl Default for Index {
    fn default() -> Self {
        Index(LOGS.iter().map(|_| RwLock::default()).collect())
    }
}

impl Index {
    fn row<R>(&self, log: Log, look: impl FnOnce(&Row) -> R) -> R {
        look(&self.0[log.0].read().unwrap_or_else(PoisonError::into_inner))
    }

    fn edit<R>(&self, log: Log, edit: impl FnOnce(&mut Row) -> R) -> R {
        edit(&mut self.0[log.0].write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number that the next record gets.
    pub(super) fn next(&self, log: Log) -> u64 {
        self.row(log, Row::next)
    }

    /// How many records there are, and the bytes of their values.
    pub(super) fn size(&self, log: Log) -> (u64, u64) {
        self.row(log, |row| (row.places.len() as u64, row.bytes))
    }

    /// The records before it end here: the next one has this number. False if there are others than the records up to it.
    #[must_use]
    pub(super) fn goes_on_at(&self, log: Log, number: u64) -> bool {
        self.edit(log, |row| *row.next.get_or_insert(number) == number)
    }

    /// The last records before this number may have been removed: the next one has this number. False if there is a later one.
    #[must_use]
    pub(super) fn ends_at(&self, log: Log, number: u64) -> bool {
        self.edit(log, |row| {
            let fits = row.next() <= number;
            row.next = Some(row.next().max(number));
            fits
        })
    }

    /// One more record; false if a later one is known.
    #[must_use]
    pub(super) fn push(&self, log: Log, number: u64, place: ValueLocation) -> bool {
        self.edit(log, |row| {
            if number < row.next() {
                return false;
            }
            row.next = Some(number + 1);
            row.bytes += place.length as u64;
            row.places.insert(number, place);
            true
        })
    }

    /// A record is no more.
    pub(super) fn remove(&self, log: Log, number: u64) {
        self.edit(log, |row| row.remove(number));
    }

    /// Forgets all records: a file that holds all of them follows.
    pub(super) fn clear(&self) {
        Log::all().for_each(|log| self.edit(log, |row| *row = Row::default()));
    }

    /// The record stands elsewhere now, if it is still there.
    pub(super) fn moved(&self, log: Log, number: u64, place: ValueLocation) {
        self.edit(log, |row| {
            if let Some(known) = row.places.get_mut(&number) {
                *known = place;
            }
        });
    }

    /// Every record of a kind with its value, the oldest first.
    pub(super) fn all(&self, log: Log) -> impl Iterator<Item = io::Result<(u64, Vec<u8>)>> {
        let places: Vec<_> =
            self.row(log, |row| row.places.iter().map(|(number, place)| (*number, place.clone())).collect());
        places.into_iter().map(|(number, place)| Ok((number, place.read()?)))
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

/// Reads numbered records backwards. What goes meanwhile is left out.
pub struct Newest<'a> {
    index: &'a Index,
    log: Log,
    first: u64,
    /// All from here on were looked up.
    end: u64,
    chunk: Vec<(u64, ValueLocation)>,
}

impl Iterator for Newest<'_> {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() {
            self.chunk = self.index.row(self.log, |row| {
                let wanted = self.first..self.end.max(self.first);
                let newest = row.places.range(wanted).rev().take(CHUNK);
                let mut chunk: Vec<_> = newest.map(|(number, place)| (*number, place.clone())).collect();
                chunk.reverse();
                chunk
            });
            self.end = self.chunk.first()?.0;
        }
        let (number, place) = self.chunk.pop()?;
        Some(place.read().map(|value| (number, value)))
    }
}

/// Reads numbered records forwards. What comes or goes meanwhile may be left out.
pub struct Oldest<'a> {
    index: &'a Index,
    log: Log,
    /// All before this one were looked up; `None` after the last number that there can be.
    next: Option<u64>,
    /// The next record is the last one.
    chunk: Vec<(u64, ValueLocation)>,
}

impl Iterator for Oldest<'_> {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() {
            let first = self.next?;
            self.chunk = self.index.row(self.log, |row| {
                let oldest = row.places.range(first..).take(CHUNK);
                let mut chunk: Vec<_> = oldest.map(|(number, place)| (*number, place.clone())).collect();
                chunk.reverse();
                chunk
            });
            self.next = self.chunk.first()?.0.checked_add(1);
        }
        let (number, place) = self.chunk.pop()?;
        Some(place.read().map(|value| (number, value)))
    }
}
