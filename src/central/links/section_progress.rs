//! Which entries of each section a link has sent, and which of them its node has taken.

use super::{LinkId, Links};
use meshd_proto::{DrainReport, NodeSpec, Section, SpecEntry};
use meshd_types::{NodeId, failpoint};

/// The progress of a section on one link, as generations. The link loses nothing, so an entry that
/// is sent is observed once, or the link ends.
#[derive(Clone, Copy, Default)]
pub(super) struct SectionProgress {
    /// The last entry that was sent.
    sent: u64,
    /// The last entry that the node has taken.
    observed: u64,
}

impl Links {
    /// Numbers entries that a link sends now; none for a link that was replaced.
    pub(crate) fn number_entries(&self, link: LinkId, entries: Vec<SpecEntry>) -> Vec<NodeSpec> {
        let mut links = self.inner.lock();
        let Some(live) =
            links.entries.get_mut(&link.node).filter(|live| live.number == link.number)
        else {
            return Vec::new();
        };
        let number = |entry: SpecEntry| {
            let progress = live.sections.entry(entry.section()).or_default();
            progress.sent += 1;
            NodeSpec { generation: progress.sent, entry }
        };
        entries.into_iter().map(number).collect()
    }

    /// Records that a part of the desired state could not be sent on a link.
    pub(crate) fn record_unsent_spec(&self, link: LinkId) {
        let mut links = self.inner.lock();
        if let Some(entry) =
            links.entries.get_mut(&link.node).filter(|entry| entry.number == link.number)
        {
            entry.has_unsent_spec = true;
        }
    }

    /// Returns true once after [`Links::record_unsent_spec`].
    pub(crate) fn take_unsent_spec(&self, link: LinkId) -> bool {
        let mut links = self.inner.lock();
        let entry = links.entries.get_mut(&link.node).filter(|entry| entry.number == link.number);
        entry.is_some_and(|entry| std::mem::take(&mut entry.has_unsent_spec))
    }

    /// Records which entry of a section the node has taken. A number that was not sent counts as
    /// the last one.
    pub(crate) fn record_observed(&self, link: LinkId, section: Section, observed: u64) {
        let mut links = self.inner.lock();
        if let Some(entry) =
            links.entries.get_mut(&link.node).filter(|entry| entry.number == link.number)
        {
            let progress = entry.sections.entry(section).or_default();
            let last = if failpoint::defends("observed-sent") { progress.sent } else { u64::MAX };
            progress.observed = observed.clamp(progress.observed, last);
        }
    }

    /// Returns true if a node has taken all entries of a section that were sent to it. Until then,
    /// repeating them is of no use.
    pub(crate) fn has_observed_all(&self, node: NodeId, section: Section) -> bool {
        let links = self.inner.lock();
        let progress = links.entries.get(&node).and_then(|entry| entry.sections.get(&section));
        progress.is_none_or(|progress| progress.observed == progress.sent)
    }

    /// Stores the report of drain hooks of a link.
    pub(crate) fn record_drain_report(&self, link: LinkId, report: DrainReport) {
        let mut links = self.inner.lock();
        let entry = links.entries.get_mut(&link.node).filter(|entry| entry.number == link.number);
        if let Some(entry) = entry {
            entry.drain = Some(report);
        }
    }

    /// Returns the last report of drain hooks of a node's link; `None` while the node has not taken
    /// the last entry.
    pub(crate) fn drain_report(&self, node: NodeId) -> Option<DrainReport> {
        let is_current = self.has_observed_all(node, Section::Drain);
        self.inner.lock().entries.get(&node).filter(|_| is_current)?.drain.clone()
    }
}
