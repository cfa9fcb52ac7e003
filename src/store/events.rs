//! The event log: append-only and bounded, written in every transaction.

use super::{Store, StoreError, journal::EVENTS};
use meshd_model::fleet::{Event, EventSeq};
use meshd_types::NodeId;

/// Which events to read.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only those after this one.
    pub after: Option<EventSeq>,
    /// Only those of this node.
    pub node: Option<NodeId>,
    /// Only those of these kinds, by [`meshd_model::fleet::EventKind::word`]; of all where none is named.
    pub kinds: Vec<String>,
    /// At most so many, the newest.
    pub limit: usize,
}

impl EventFilter {
    /// True if an event is of the node and of a kind that are wanted, whenever it was.
    pub fn takes(&self, event: &Event) -> bool {
        let is_kind = self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == event.kind.word());
        is_kind && self.node.is_none_or(|node| event.node == Some(node))
    }
}

impl Store {
    /// Events in their order, the newest `limit` of those that fit. Blocks.
    pub fn events(&self, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, StoreError> {
        let first = filter.after.map_or(0, |after| after.0.saturating_add(1));
        let mut found = Vec::new();
        for record in self.journal.newest(EVENTS, first) {
            let (seq, value) = record.map_err(StoreError::Read)?;
            let event: Event = serde_json::from_slice(&value)
                .map_err(|source| StoreError::Damaged { key: format!("event/{seq}"), source })?;
            if filter.takes(&event) {
                found.push((EventSeq(seq), event));
            }
            if found.len() >= filter.limit {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }
}
