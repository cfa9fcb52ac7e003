//! Nodes that were online a moment ago, and whether their reboot was announced. A machine that
//! boots as such a node without an announcement may be another machine while the node runs.

use super::Links;
use meshd_model::fleet::{BootSession, Node, Stage};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, NodeId};
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
    pub(crate) async fn record_agent_stop(
        &self,
        node: NodeId,
        session: BootSessionId,
    ) -> Result<(), StoreError> {
        let stored = self.env.store.commit(|tx| {
            announce_end(tx, node, session, |session| session.agent_stopped = true);
            Ok(())
        });
        stored.await
    }
}

/// Records that a boot of a node ends. The boot of a ticket has no boot session on record.
pub(crate) fn announce_end(
    tx: &mut Tx<'_>,
    node: NodeId,
    boot: BootSessionId,
    mark: impl FnOnce(&mut BootSession),
) {
    if tx.edit_session(boot, mark).is_none() {
        tx.edit_node(node, |node| node.announced_end = Some(boot));
    }
}

/// Records that a boot of a node does not end: its agent is back, or its reboot failed.
pub(crate) fn withdraw_end(
    tx: &mut Tx<'_>,
    node: NodeId,
    boot: BootSessionId,
    unmark: impl FnOnce(&mut BootSession),
) {
    let is_announced = |node: &Node| node.announced_end == Some(boot);
    if tx.edit_session(boot, unmark).is_none() && tx.node(node).is_some_and(is_announced) {
        tx.edit_node(node, |node| node.announced_end = None);
    }
}

/// True if the end of the newest boot with a link was announced. Failed boots may lie between that
/// boot and `present`. If `present` itself had the link, nobody announced a reboot since.
fn is_end_announced(model: &Model, node: &Node, present: BootSessionId) -> bool {
    // The node runs in the boot of a ticket: earlier boots say nothing about it.
    if let Some(boot) = node.boot.filter(|boot| model.session(*boot).is_none()) {
        return node.announced_end == Some(boot);
    }
    let newest = model.boots_of(node).into_iter().find(|boot| boot.reached(Stage::Link).is_some());
    newest.is_some_and(|boot| boot.id != present && boot.is_end_announced())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::fleet::Fingerprint;
    use meshd_store::Store;
    use meshd_types::{Basis, MacAddr, Timestamp};

    #[tokio::test]
    async fn end_of_the_boot_of_a_ticket_is_announced_apart_from_earlier_boots() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(dir.path()).expect("a store");
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let now = Timestamp::from_millis(1);
        let [earlier, ticket, present] = [1, 2, 3].map(|number| BootSessionId([number; 12]));
        let node = Node {
            boot: Some(ticket),
            ..Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, now)
        };
        let id = node.id;
        let prepared = store.commit(|tx| {
            let mut session = BootSession::open(earlier, mac, Stage::Link, now);
            (session.node, session.reboot_ordered) = (Some(id), true);
            tx.put_session(session);
            tx.put_node(node);
            Ok::<_, StoreError>(())
        });
        prepared.await.expect("stored");
        let is_announced = || {
            store.read(|model| is_end_announced(model, model.node(id).expect("stored"), present))
        };
        assert!(!is_announced(), "only the end of the earlier boot was announced");
        let announced = store.commit(|tx| {
            announce_end(tx, id, ticket, |session| session.agent_stopped = true);
            Ok::<_, StoreError>(())
        });
        announced.await.expect("stored");
        assert!(is_announced());
        let withdrawn = store.commit(|tx| {
            withdraw_end(tx, id, ticket, |session| session.agent_stopped = false);
            Ok::<_, StoreError>(())
        });
        withdrawn.await.expect("stored");
        assert!(!is_announced(), "the agent is back");
    }
}
