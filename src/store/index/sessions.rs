//! Retention of boot sessions: sessions of unapproved machines are removed before those of nodes.

use crate::{
    MAX_DHCP_ONLY_SESSIONS, MAX_SESSIONS, MAX_SESSIONS_PER_MAC, MAX_UNAPPROVED_SESSIONS, Model,
};
use meshd_model::fleet::{BootSession, Node, Phase, Stage, StageMark};
use meshd_types::{BootSessionId, Timestamp, failpoint};

/// Sorts sessions by the order in which they were stored, independent of the clock.
pub(crate) type Age = (u64, Timestamp, BootSessionId);

pub(crate) fn age(session: &BootSession) -> Age {
    (session.order, session.opened_at, session.id)
}

impl Model {
    /// Returns the sessions to remove for a new one. The transaction has already added
    /// `added_sessions`, and removes those of `is_removed`.
    pub(crate) fn surplus_sessions(
        &self,
        newcomer: &BootSession,
        added_sessions: isize,
        is_removed: impl Fn(&BootSessionId) -> bool,
    ) -> Vec<BootSessionId> {
        let is_kept = |(.., id): &&Age| !is_removed(id);
        let of_mac =
            || self.sessions_by_mac.get(&newcomer.mac).into_iter().flatten().filter(is_kept);
        let too_many = (of_mac().count() + 1).saturating_sub(MAX_SESSIONS_PER_MAC);
        let mut surplus: Vec<_> = of_mac().take(too_many).map(|(.., id)| *id).collect();
        let over = |count: usize, bound: usize| {
            (count.saturating_add_signed(added_sessions) + 1).saturating_sub(bound)
        };
        // A flood of invented MAC addresses evicts its own sessions before those of nodes.
        let (is_unapproved, is_dhcp_only) = self.unapproved_kind(newcomer);
        let excess = if is_dhcp_only {
            over(self.dhcp_only_sessions.len(), MAX_DHCP_ONLY_SESSIONS)
        } else {
            0
        };
        surplus.extend(
            self.dhcp_only_sessions.iter().filter(is_kept).map(|(.., id)| *id).take(excess),
        );
        let excess = if is_unapproved {
            over(self.unapproved_sessions.len(), MAX_UNAPPROVED_SESSIONS)
        } else {
            0
        };
        let oldest = self
            .dhcp_only_sessions
            .iter()
            .chain(&self.unapproved_sessions)
            .filter(is_kept)
            .map(|(.., id)| *id);
        surplus.extend(oldest.take(excess.saturating_sub(surplus.len())));
        let excess = over(self.sessions.len(), MAX_SESSIONS).saturating_sub(surplus.len());
        surplus
            .extend(self.sessions_by_age.iter().filter(is_kept).map(|(.., id)| *id).take(excess));
        surplus
    }

    /// Returns whether a session belongs to an unapproved machine, and whether such a machine
    /// reached DHCP only.
    pub(crate) fn unapproved_kind(&self, session: &BootSession) -> (bool, bool) {
        let is_approved = |node: &Node| !matches!(node.phase, Phase::Discovered | Phase::Removed);
        let node = session
            .node
            .and_then(|id| self.nodes.get(&id))
            .or_else(|| self.node_of_mac(session.mac));
        let is_unapproved =
            !node.is_some_and(is_approved) && failpoint::defends("stranger-sessions");
        let is_dhcp =
            |mark: &StageMark| matches!(mark.stage, Stage::Dhcp | Stage::IpxeDhcp | Stage::OsDhcp);
        (is_unapproved, is_unapproved && session.stages.iter().all(is_dhcp))
    }
}
