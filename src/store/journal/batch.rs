//! An atomic change, before it is written.

use super::{frame, numbered::Log};

/// Offset and length of a value in the body of a change; `None`: the record is removed.
pub(super) type BodyRange = Option<(usize, usize)>;

/// An atomic change.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) body: Vec<u8>,
    pub(super) numbered: Vec<(Log, u64, BodyRange)>,
}

impl Batch {
    /// Returns true if it changes no record.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Sets the value of a record.
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let key = key.as_ref();
        let value = value.as_ref();
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
