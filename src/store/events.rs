//! The event log: append-only and bounded, written in every transaction.

use super::{
    Store, StoreError,
    change_log::NumberedRecords,
    journal::{EVENTS, Log},
    open::decode,
};
use meshd_model::fleet::{Event, EventSeq};
use meshd_types::NodeId;
use serde::de::DeserializeOwned;
use std::io;

/// Selects events.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Excludes events up to this one.
    pub after: Option<EventSeq>,
    pub node: Option<NodeId>,
    /// Words of kinds ([`meshd_model::fleet::EventKind::word`]); empty for all kinds.
    pub kinds: Vec<String>,
    /// Maximum number of events.
    pub limit: usize,
    /// Excludes this event and later ones.
    pub before: Option<EventSeq>,
    /// Selects the oldest `limit` instead of the newest.
    pub oldest: bool,
    /// Text in kind, detail or reason, in lower case.
    pub text: Option<String>,
}

impl EventFilter {
    /// True if node, kind and text of an event match. The range of numbers is not checked.
    pub fn takes(&self, event: &Event) -> bool {
        let is_kind =
            self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == event.kind.word());
        is_kind && self.node.is_none_or(|node| event.node == Some(node)) && self.has_text(event)
    }

    fn has_text(&self, event: &Event) -> bool {
        let Some(text) = &self.text else { return true };
        let reason = event.by.as_ref().and_then(|audit| audit.reason.as_deref());
        let texts = [Some(event.kind.word()), Some(event.detail.as_str()), reason];
        texts.into_iter().flatten().any(|part| part.to_lowercase().contains(text.as_str()))
    }
}

impl Store {
    /// Returns matching events in their order: the newest `limit`, or the oldest. Blocks.
    pub fn events(&self, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, StoreError> {
        let range = Range {
            first: filter.after.map_or(0, |after| after.0.saturating_add(1)),
            end: filter.before.map_or(u64::MAX, |before| before.0),
            limit: filter.limit,
            oldest: filter.oldest,
        };
        let found = self.numbered(EVENTS, range, |event| filter.takes(event))?;
        Ok(found.into_iter().map(|(seq, event)| (EventSeq(seq), event)).collect())
    }

    /// Reads matching numbered records in their order.
    pub(super) fn numbered<T: DeserializeOwned>(
        &self,
        log: Log,
        range: Range,
        matches: impl Fn(&T) -> bool,
    ) -> Result<Vec<(u64, T)>, StoreError> {
        let Range { first, end, limit, oldest } = range;
        let records: NumberedRecords<'_> = if oldest {
            let is_before_end =
                move |record: &io::Result<(u64, _)>| !matches!(record, Ok((seq, _)) if *seq >= end);
            Box::new(self.shared.log.oldest(log, first).take_while(is_before_end))
        } else {
            self.shared.log.newest(log, first, end)
        };
        let mut found = Vec::new();
        for record in records {
            let (seq, value) = record.map_err(StoreError::Read)?;
            let record: T = decode(log, seq, &value)?;
            if matches(&record) {
                found.push((seq, record));
            }
            if found.len() >= limit {
                break;
            }
        }
        if !oldest {
            found.reverse();
        }
        Ok(found)
    }
}

/// The numbered records to read: from `first` on and before `end`, at most `limit`, the newest or
/// the oldest of them.
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) limit: usize,
    pub(super) oldest: bool,
}
