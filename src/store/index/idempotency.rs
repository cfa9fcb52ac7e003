//! Orders with an idempotency key: retention of keys and answers.

use crate::{ASKED_LIFE, MAX_ANSWERS, MAX_ASKED, Model};
use meshd_model::fleet::IdempotencyRecord;
use meshd_types::{Digest, Timestamp};

impl Model {
    /// Orders with a key that have to go when one more comes.
    pub(crate) fn surplus_asked(&self, now: Timestamp) -> Vec<Digest> {
        let mut by_age: Vec<_> = self.asked.iter().map(|(key, asked)| (asked.at, *key)).collect();
        by_age.sort_unstable();
        let excess = (by_age.len() + 1).saturating_sub(MAX_ASKED);
        let goes = |(place, (at, _)): &(usize, (Timestamp, Digest))| *place < excess || now.since(*at) > ASKED_LIFE;
        by_age.into_iter().enumerate().filter(goes).map(|(_, (_, key))| key).collect()
    }

    /// Orders whose answer is kept no longer when one more is: that they were followed stays known.
    pub(crate) fn surplus_answers(&self) -> Vec<(Digest, IdempotencyRecord)> {
        let body = |asked: &IdempotencyRecord| asked.answer.as_ref().is_some_and(|answered| answered.body.is_some());
        let mut by_age: Vec<_> = self.asked.iter().filter(|(_, asked)| body(asked)).collect();
        by_age.sort_unstable_by_key(|(key, asked)| (asked.at, **key));
        let excess = (by_age.len() + 1).saturating_sub(MAX_ANSWERS);
        by_age.into_iter().take(excess).map(|(key, asked)| (*key, asked.clone().without_body())).collect()
    }
}
