//! Orders with an idempotency key: retention of keys and answers.

use crate::{IDEMPOTENCY_KEY_LIFETIME, MAX_ANSWERS, MAX_IDEMPOTENCY_KEYS, Model};
use meshd_model::fleet::IdempotencyRecord;
use meshd_types::{Digest, Timestamp};

impl Model {
    /// Returns expired keys, and the oldest to remove for a new one.
    pub(crate) fn surplus_idempotency_keys(&self, now: Timestamp) -> Vec<Digest> {
        let mut by_age: Vec<_> =
            self.idempotency_records.iter().map(|(key, record)| (record.at, *key)).collect();
        by_age.sort_unstable();
        let excess = (by_age.len() + 1).saturating_sub(MAX_IDEMPOTENCY_KEYS);
        let is_surplus = |(index, (at, _)): &(usize, (Timestamp, Digest))| {
            *index < excess || now.distance(*at) > IDEMPOTENCY_KEY_LIFETIME
        };
        by_age.into_iter().enumerate().filter(is_surplus).map(|(_, (_, key))| key).collect()
    }

    /// Returns the oldest records with a stored answer, without that answer. The keys stay known.
    pub(crate) fn surplus_answers(&self) -> Vec<(Digest, IdempotencyRecord)> {
        let has_body = |record: &IdempotencyRecord| {
            record.answer.as_ref().is_some_and(|answer| answer.body.is_some())
        };
        let mut by_age: Vec<_> =
            self.idempotency_records.iter().filter(|(_, record)| has_body(record)).collect();
        by_age.sort_unstable_by_key(|(key, record)| (record.at, **key));
        let excess = (by_age.len() + 1).saturating_sub(MAX_ANSWERS);
        by_age
            .into_iter()
            .take(excess)
            .map(|(key, record)| (*key, record.clone().without_body()))
            .collect()
    }
}
