//! Retention of boot sessions: sessions of unknown machines go before those of nodes.

use crate::{MAX_IDLE_SESSIONS, MAX_SESSIONS, MAX_SESSIONS_PER_MAC, MAX_STRANGER_SESSIONS, Model};
use meshd_model::fleet::{BootSession, Node, Phase, Stage, StageMark};
use meshd_types::{BootSessionId, Timestamp, fail};

/// Which session came first: in the order in which they were stored, whatever the clock said then. Those of an older meshd, which wrote
/// no order down, go by their time and before all others.
pub(crate) type Age = (u64, Timestamp, BootSessionId);

/// The age of a session.
pub(crate) fn age(session: &BootSession) -> Age {
    (session.order, session.opened_at, session.id)
}

impl Model {
    /// Sessions that have to go when one more of this MAC is kept, beside `more` that are kept in the same transaction and
    /// those that go in it.
    pub(crate) fn surplus_sessions(
        &self,
        newcomer: &BootSession,
        more: isize,
        goes: impl Fn(&BootSessionId) -> bool,
    ) -> Vec<BootSessionId> {
        let stays = |(.., id): &&Age| !goes(id);
        let own = || self.by_mac.get(&newcomer.mac).into_iter().flatten().filter(stays);
        let too_many = (own().count() + 1).saturating_sub(MAX_SESSIONS_PER_MAC);
        let mut surplus: Vec<_> = own().take(too_many).map(|(.., id)| *id).collect();
        let over = |count: usize, bound: usize| (count.saturating_add_signed(more) + 1).saturating_sub(bound);
        // A flood of invented MAC addresses drives out itself before it drives out the boots of nodes.
        let (is_stranger, is_idle) = self.is_stranger(newcomer);
        let excess = if is_idle { over(self.idle.len(), MAX_IDLE_SESSIONS) } else { 0 };
        surplus.extend(self.idle.iter().filter(stays).map(|(.., id)| *id).take(excess));
        let excess = if is_stranger { over(self.strangers.len(), MAX_STRANGER_SESSIONS) } else { 0 };
        let oldest = self.idle.iter().chain(&self.strangers).filter(stays).map(|(.., id)| *id);
        surplus.extend(oldest.take(excess.saturating_sub(surplus.len())));
        let excess = over(self.sessions.len(), MAX_SESSIONS).saturating_sub(surplus.len());
        surplus.extend(self.by_age.iter().filter(stays).map(|(.., id)| *id).take(excess));
        surplus
    }

    /// Whether a session is of a machine that nobody let in; and whether that came no further than DHCP.
    pub(crate) fn is_stranger(&self, session: &BootSession) -> (bool, bool) {
        let is_let_in = |node: &Node| !matches!(node.phase, Phase::Discovered | Phase::Removed);
        let own = session.node.and_then(|id| self.nodes.get(&id)).or_else(|| self.node_of_mac(session.mac));
        let is_stranger = !own.is_some_and(is_let_in) && fail::defends("stranger-sessions");
        let is_dhcp = |mark: &StageMark| matches!(mark.stage, Stage::Dhcp | Stage::IpxeDhcp | Stage::OsDhcp);
        (is_stranger, is_stranger && session.stages.iter().all(is_dhcp))
    }
}
