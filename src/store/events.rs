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
    /// Only those before this one.
    pub before: Option<EventSeq>,
    /// The oldest `limit` in place of the newest.
    pub oldest: bool,
    /// Only those whose kind, detail or reason contains this text in lower case.
    pub text: Option<String>,
}

impl EventFilter {
    /// True if an event is of the node and of a kind that are wanted, whenever it was.
    pub fn takes(&self, event: &Event) -> bool {
        let is_kind = self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == event.kind.word());
        is_kind && self.node.is_none_or(|node| event.node == Some(node)) && self.has_text(event)
    }

    fn has_text(&self, event: &Event) -> bool {
        let Some(text) = &self.text else { return true };
        let reason = event.by.as_ref().and_then(|by| by.reason.as_deref());
        let texts = [Some(event.kind.word()), Some(event.detail.as_str()), reason];
        texts.into_iter().flatten().any(|part| part.to_lowercase().contains(text.as_str()))
    }
}

impl Store {
    /// Events in their order, the newest `limit` of those that fit, or the oldest. Blocks.
    pub fn events(&self, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, StoreError> {
        let first = filter.after.map_or(0, |after| after.0.saturating_add(1));
        let end = filter.before.map_or(u64::MAX, |before| before.0);
        let mut found = Vec::new();
        let (newest, oldest) = if filter.oldest {
            (None, Some(self.journal.oldest(EVENTS, first).take_while(is_before(end))))
        } else {
            (Some(self.journal.newest(EVENTS, first, end)), None)
        };
        for record in newest.into_iter().flatten().chain(oldest.into_iter().flatten()) {
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
        if !filter.oldest {
            found.reverse();
        }
        Ok(found)
    }
}

/// True for a record before a number, and for an error.
pub(super) fn is_before(end: u64) -> impl Fn(&std::io::Result<(u64, Vec<u8>)>) -> bool {
    move |record| record.as_ref().map_or(true, |(number, _)| *number < end)
}
