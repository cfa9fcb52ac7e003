//! The record of events: appended in every transaction, read from the disk, bounded.

use super::{MAX_EVENTS, Model, Store, StoreError};
use crate::fleet::{Event, EventSeq};
use crate::id::NodeId;

const PREFIX: &[u8] = b"event/";

/// Which events to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventFilter {
    /// Only those after this one.
    pub after: Option<EventSeq>,
    /// Only those of this node.
    pub node: Option<NodeId>,
    /// At most so many, the newest.
    pub limit: usize,
}

pub(super) fn key(seq: EventSeq) -> Vec<u8> {
    [PREFIX, &seq.0.to_be_bytes()].concat()
}

/// The sequence number of an event's key.
pub(super) fn seq_of(key: &[u8]) -> Option<EventSeq> {
    let number: [u8; 8] = key.strip_prefix(PREFIX)?.try_into().ok()?;
    Some(EventSeq(u64::from_be_bytes(number)))
}

/// The events that have to go when `added` more come. They are removed one for one, so this is short.
pub(super) fn surplus(model: &Model, added: usize) -> impl Iterator<Item = EventSeq> + use<> {
    let end = (model.next_event.0 + added as u64).saturating_sub(MAX_EVENTS);
    let begin = model.oldest_event.0.max(end.saturating_sub(added as u64 * 2));
    (begin..end).map(EventSeq)
}

impl Store {
    /// Events in their order, the newest `limit` of those that fit.
    pub fn events(&self, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, StoreError> {
        let first = filter.after.map_or(0, |after| after.0.saturating_add(1));
        let mut found = Vec::new();
        for record in self.tree.range(key(EventSeq(first))..=key(EventSeq(u64::MAX))).rev() {
            let (record_key, value) = record.map_err(StoreError::Write)?;
            let Some(seq) = seq_of(&record_key) else { break };
            let event: Event = serde_json::from_slice(&value)
                .map_err(|source| StoreError::Damaged { key: format!("event/{}", seq.0), source })?;
            if filter.node.is_none_or(|node| event.node == Some(node)) {
                found.push((seq, event));
            }
            if found.len() >= filter.limit {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }
}
