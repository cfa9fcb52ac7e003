//! Staged changes of records of one kind, and where they are applied.

use crate::{StoreError, journal::Batch};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Display};

/// All records of one kind in memory, with the indexes that are derived from them.
pub(crate) trait RecordIndex<K, R> {
    /// Adds or replaces a record. Returns the old one.
    fn put_record(&mut self, key: K, record: R) -> Option<R>;
    /// Removes a record and returns it.
    fn remove_record(&mut self, key: &K) -> Option<R>;
}

/// Records without a further index.
impl<K: Ord, R> RecordIndex<K, R> for BTreeMap<K, R> {
    fn put_record(&mut self, key: K, record: R) -> Option<R> {
        self.insert(key, record)
    }

    fn remove_record(&mut self, key: &K) -> Option<R> {
        self.remove(key)
    }
}

/// Changes of records of one kind; `None` removes the record.
pub(crate) struct Changes<K, R>(BTreeMap<K, Option<R>>);

impl<K, R> Default for Changes<K, R> {
    fn default() -> Self {
        Changes(BTreeMap::new())
    }
}

impl<K: Ord + Clone, R> Changes<K, R> {
    pub(crate) fn put(&mut self, key: K, record: R) {
        self.0.insert(key, Some(record));
    }

    pub(crate) fn remove(&mut self, key: K) {
        self.0.insert(key, None);
    }

    /// The record as staged, or as it was.
    pub(crate) fn get<'a>(
        &'a self,
        key: &K,
        before: impl FnOnce() -> Option<&'a R>,
    ) -> Option<&'a R> {
        self.0.get(key).map_or_else(before, Option::as_ref)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// True if the record is staged to be removed.
    pub(crate) fn removes(&self, key: &K) -> bool {
        matches!(self.0.get(key), Some(None))
    }

    /// Staged records, without removed ones.
    pub(crate) fn records(&self) -> impl Iterator<Item = &R> {
        self.0.values().flatten()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Applies the changes. Returns the changes that undo them.
    pub(crate) fn apply(self, index: &mut impl RecordIndex<K, R>) -> Self {
        let mut undo = Changes::default();
        for (key, change) in self.0 {
            let before = match change {
                Some(record) => index.put_record(key.clone(), record),
                None => index.remove_record(&key),
            };
            undo.0.insert(key, before);
        }
        undo
    }
}

impl<K: Display, R: Serialize> Changes<K, R> {
    pub(crate) fn write(&self, kind: &str, batch: &mut Batch) -> Result<(), StoreError> {
        for (key, change) in &self.0 {
            let key = format!("{kind}/{key}").into_bytes();
            match change {
                Some(record) => {
                    batch.insert(key, serde_json::to_vec(record).map_err(StoreError::Encode)?)
                }
                None => batch.remove(key),
            }
        }
        Ok(())
    }
}
