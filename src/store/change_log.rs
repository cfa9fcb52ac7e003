//! The log of changes: the store's only way to the disk.

use crate::journal::{Batch, Log};
use std::{fs::File, io};

/// Position of a change in the log. Changes have consecutive positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// All records but the numbered ones: key and value.
pub type Records = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;

/// Numbered records, each with its number.
pub type NumberedRecords<'a> = Box<dyn Iterator<Item = io::Result<(u64, Vec<u8>)>> + 'a>;

/// One change, as a follower reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedChange {
    pub position: Position,
    /// Keys with their new values; `None` removes the record.
    pub records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// A copy of the log: files that form the same store in another folder.
#[derive(Debug)]
pub struct LogSnapshot {
    /// The last change in the copy. A follower continues after it.
    pub position: Position,
    /// Name, open file, and length in bytes. Later changes do not affect these bytes.
    pub files: Vec<(String, File, u64)>,
}

/// A durable sequence of changes. Every method may block on the disk.
pub trait ChangeLog: Send + Sync {
    /// Appends changes in order. Returns the position of the last one when all of them are on the
    /// disk: they are acknowledged then.
    ///
    /// # Errors
    /// None of the changes is in the log. If the process ends before the next successful call, a
    /// restart may find them.
    fn append(&self, changes: Vec<Batch>) -> io::Result<Position>;

    /// Returns all records but the numbered ones, as of the opening. Only the first call returns
    /// them.
    fn load(&self) -> Records;

    /// Returns a copy of all acknowledged changes.
    fn snapshot(&self) -> io::Result<LogSnapshot>;

    /// Returns the acknowledged changes after a position, in order. `None`: the log has replaced
    /// them by their result; begin with a snapshot.
    fn changes_after(&self, after: Position) -> io::Result<Option<Vec<LoggedChange>>>;

    /// The number of the next numbered record.
    fn next_number(&self, log: Log) -> u64;

    /// Numbered records from `first` on and before `end`, the newest first.
    fn newest(&self, log: Log, first: u64, end: u64) -> NumberedRecords<'_>;

    /// Numbered records from `first` on, the oldest first.
    fn oldest(&self, log: Log, first: u64) -> NumberedRecords<'_>;

    /// Removes numbered records that exceed a bound at the start. The next compaction removes them
    /// from the disk.
    fn forget(&self, log: Log, numbers: &mut dyn Iterator<Item = u64>);

    /// Fails if a change could not be appended now.
    fn check(&self) -> io::Result<()>;

    /// True if the log is long: call [`ChangeLog::compact`].
    fn needs_compaction(&self) -> bool;

    /// Replaces a long log. After an error, the old log continues, and compaction is due when it
    /// has grown further.
    fn compact(&self) -> io::Result<()>;

    /// Marks the log as complete; called once, at the end.
    fn close(&self) -> io::Result<()>;
}
