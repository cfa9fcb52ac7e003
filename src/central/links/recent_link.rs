//! Nodes that were online a moment ago, and whether their reboot was announced. A machine that
//! boots as such a node without an announcement may be another machine while the node runs.

use super::Links;
use meshd_model::fleet::{Node, Stage};
use meshd_store::{Model, StoreError};
use meshd_types::BootSessionId;
use std::time::Duration;

impl Links {
    /// Returns the silence of a node with a certificate that was online within
    /// `[agent].offline_after`, unless its reboot was announced. `present` is the boot session that
    /// would replace the certificate.
    pub(crate) fn unannounced_silence(
        &self,
        model: &Model,
        node: &Node,
        present: BootSessionId,
    ) -> Option<Duration> {
        let silence = self.recent_silence(node).filter(|_| !node.certificates.is_empty())?;
        (!is_end_announced(model, node, present)).then_some(silence)
    }

    /// After a start of meshd, the record tells which nodes were online, and silence counts from
    /// the start.
    fn recent_silence(&self, node: &Node) -> Option<Duration> {
        let silence = self.silence(node.id);
        let seen = self.inner.lock().last_alive.get(&node.id).map(|alive| alive.was_linked);
        let was_linked = seen.unwrap_or_else(|| node.phase.has_link());
        (was_linked && silence <= self.env.site().agent.offline_after).then_some(silence)
    }

    /// Records that the agent of a node stops in this boot.
    pub(crate) async fn agent_stopped(&self, session: BootSessionId) -> Result<(), StoreError> {
        let stored = self.env.store.commit(|tx| {
            tx.edit_session(session, |session| session.agent_stopped = true);
            Ok(())
        });
        stored.await
    }
}

/// True if the end of the newest boot with a link was announced. Failed boots may lie between that
/// boot and `present`. If `present` itself had the link, nobody announced a reboot since.
fn is_end_announced(model: &Model, node: &Node, present: BootSessionId) -> bool {
    let newest = model.boots_of(node).into_iter().find(|boot| boot.reached(Stage::Link).is_some());
    newest.is_some_and(|boot| boot.id != present && boot.is_end_announced())
}
