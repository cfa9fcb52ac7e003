//! Records that are only ever appended, such as events: found by their number, read from the disk.

use std::{
    collections::VecDeque,
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

/// How they are called, and how many of each are kept; the oldest go first.
const LOGS: [(&str, u64); 2] = [("event/", crate::store::MAX_EVENTS), ("audit/", crate::store::MAX_AUDIT)];
/// Records whose places are looked up at once.
const CHUNK: u64 = 256;

impl Log {
    /// All kinds.
    pub(super) fn all() -> impl Iterator<Item = Log> {
        (0..LOGS.len()).map(Log)
    }

    /// How its keys begin.
    pub(super) fn prefix(self) -> &'static str {
        LOGS[self.0].0
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
pub(super) struct Place {
    pub(super) file: Arc<File>,
    pub(super) at: u64,
    pub(super) length: usize,
}

impl Place {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.length];
        self.file.read_exact_at(&mut value, self.at)?;
        Ok(value)
    }
}

/// The places of all records of one kind. Numbers have no gap.
#[derive(Debug, Default)]
struct Row {
    /// `None` as long as nothing is known of them.
    first: Option<u64>,
    places: VecDeque<Place>,
}

impl Row {
    fn first(&self) -> u64 {
        self.first.unwrap_or(0)
    }

    fn next(&self) -> u64 {
        self.first() + self.places.len() as u64
    }

    fn at(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first()).and_then(|at| usize::try_from(at).ok())
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

    /// The first record that is kept.
    pub(super) fn first(&self, log: Log) -> u64 {
        self.row(log, Row::first)
    }

    /// The next record has this number; false if it has another one. If no record is known yet, they begin there.
    #[must_use]
    pub(super) fn goes_on_at(&self, log: Log, number: u64) -> bool {
        self.edit(log, |row| {
            if row.places.is_empty() {
                row.first = Some(number);
            }
            row.next() == number
        })
    }

    /// One more record; false if it is not the next one. The oldest goes beyond the bound.
    #[must_use]
    pub(super) fn push(&self, log: Log, number: u64, place: Place) -> bool {
        self.edit(log, |row| {
            let first = *row.first.get_or_insert(number);
            if row.next() != number {
                return false;
            }
            row.places.push_back(place);
            if row.places.len() as u64 > LOGS[log.0].1 {
                row.places.pop_front();
                row.first = Some(first + 1);
            }
            true
        })
    }

    /// The record stands elsewhere now.
    pub(super) fn moved(&self, log: Log, number: u64, place: Place) {
        self.edit(log, |row| {
            if let Some(known) = row.at(number).and_then(|at| row.places.get_mut(at)) {
                *known = place;
            }
        });
    }

    /// Records from `first` on, the newest first.
    pub(super) fn newest(&self, log: Log, first: u64) -> Newest<'_> {
        Newest { index: self, log, first, end: self.next(log), chunk: Vec::new() }
    }
}

/// Reads numbered records backwards. What goes meanwhile is left out.
pub struct Newest<'a> {
    index: &'a Index,
    log: Log,
    first: u64,
    /// All from here on were looked up.
    end: u64,
    chunk: Vec<(u64, Place)>,
}

impl Iterator for Newest<'_> {
    type Item = io::Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunk.is_empty() {
            self.chunk = self.index.row(self.log, |row| {
                let begin = self.end.saturating_sub(CHUNK).max(self.first).max(row.first());
                let place = |number| Some((number, row.places.get(row.at(number)?)?.clone()));
                (begin..self.end).filter_map(place).collect()
            });
            self.end = self.chunk.first()?.0;
        }
        let (number, place) = self.chunk.pop()?;
        Some(place.read().map(|value| (number, value)))
    }
}
