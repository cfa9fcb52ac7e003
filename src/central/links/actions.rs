//! Actions that operations send to nodes. The store has the number of an action before it is sent.

use super::{LinkCommand, Links, LinksInner, OutstandingAction, announce_end};
use meshd_model::{
    fleet::{Actor, Event, EventKind},
    operations::{NodeOperation, NodeOutcome, Operation},
};
use meshd_proto::{ActionId, ActionOrder, ActionOutcome, FromCentral};
use meshd_store::{Model, StoreError};
use meshd_types::{BootSessionId, NodeId, failpoint};
use std::time::Duration;

impl Links {
    /// Adds an action, which its operation has stored. [`Links::send_actions`] sends it, or the
    /// next link of the node in this boot session, unless it expires before.
    pub(crate) fn add_action(&self, order: ActionOrder, session: Option<BootSessionId>) {
        let added_at = self.env.monotonic();
        let outstanding = OutstandingAction { order, session, is_sent: false, added_at };
        self.inner.lock().actions.insert(outstanding.order.id, outstanding);
    }

    /// Returns the time since an action was added; `None` if it is not outstanding.
    pub(crate) fn action_age(&self, id: ActionId) -> Option<Duration> {
        let added_at = self.inner.lock().actions.get(&id)?.added_at;
        Some(self.env.monotonic().saturating_sub(added_at))
    }

    /// Sends the actions that were not sent. Never waits: a link with a full queue gets its action
    /// at the next call.
    pub(crate) fn send_actions(&self) {
        let mut links = self.inner.lock();
        let LinksInner { entries, actions, .. } = &mut *links;
        for OutstandingAction { order, session, is_sent, .. } in
            actions.values_mut().filter(|outstanding| !outstanding.is_sent)
        {
            let Some(entry) = entries.get(&order.node) else { continue };
            if session.is_none_or(|ordered| ordered == entry.session) {
                *is_sent = entry
                    .commands
                    .try_send(LinkCommand::Send(FromCentral::Action(order.clone())))
                    .is_ok();
            }
        }
    }

    /// Resolves at the next outcome of an action.
    pub(crate) fn next_outcome(&self) -> impl Future<Output = ()> {
        self.answered.clone().notified_owned()
    }

    /// Records the outcome of an action, and the state of its operation. A repeated outcome changes
    /// nothing and is not recorded.
    pub(crate) async fn record_action_outcome(
        &self,
        node: NodeId,
        id: ActionId,
        outcome: ActionOutcome,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let is_done = outcome == ActionOutcome::Done;
        let operation = |model: &Model| {
            let expects = |(_, record): &(&Operation, &NodeOperation)| {
                let is_confirmed = record.confirmed_at.is_some() && is_done;
                record.action == Some(id.0)
                    && !(is_confirmed && failpoint::defends("action-outcome-once"))
            };
            model.open_operations_of(node).find(expects).map(|(head, _)| head.id)
        };
        let belongs_to_node = |outstanding: &OutstandingAction| {
            outstanding.order.node == node || !failpoint::defends("action-node")
        };
        let is_outstanding = self.inner.lock().actions.get(&id).is_some_and(belongs_to_node);
        if !is_outstanding && self.env.store.read(operation).is_none() {
            return Ok(());
        }
        let detail = format!("action {}: {outcome:?}", id.0);
        let recorded = self.env.store.commit(|tx| {
            tx.event(Event::new(now, Actor::Node, EventKind::NodeAction, detail).of_node(node));
            let Some(operation) = operation(tx.before()) else { return Ok(()) };
            let record = match outcome {
                ActionOutcome::Done => tx.edit_node_operation(operation, node, |record| {
                    record.confirm(now);
                    record.session
                }),
                ActionOutcome::Refused { reason } | ActionOutcome::Failed { reason } => tx
                    .edit_node_operation(operation, node, |record| {
                        record.finish(NodeOutcome::Failed(reason), now);
                        None
                    }),
            };
            if let Some(session) = record.flatten() {
                // The present boot does not count as failed: an order ends it.
                announce_end(tx, node, session, |session| session.reboot_ordered = true);
            }
            Ok::<_, StoreError>(())
        });
        recorded.await?;
        // After the commit: an earlier repetition would be acknowledged before it is stored.
        self.inner.lock().actions.remove(&id);
        self.answered.notify_waiters();
        Ok(())
    }
}
