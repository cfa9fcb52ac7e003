//! Ends the links of nodes without credentials, and forgets their reports.

use super::{LinkCommand, Links};
use meshd_types::NodeId;

impl Links {
    /// Forgets what a node reported whose link has ended meanwhile: its report may have been stored
    /// after [`Links::sever_link`].
    pub(crate) fn forget_unlinked(&self, node: NodeId) {
        if !self.is_linked(node) {
            self.reported.forget(node);
        }
    }

    /// Removes a node's link at once, without waiting for the node, and forgets what it reported.
    pub(crate) fn sever_link(&self, node: NodeId, reason: &str) {
        self.remove_link(node, reason);
        self.reported.forget(node);
    }

    fn remove_link(&self, node: NodeId, reason: &str) {
        let mut links = self.inner.lock();
        links.actions.retain(|_, outstanding| outstanding.order.node != node);
        if let Some(entry) = links.entries.remove(&node) {
            // If the queue is full, the dropped sender ends the link.
            let _ = entry.commands.try_send(LinkCommand::Close(reason.to_owned()));
        }
        // A former sign of life proves nothing for the next client with this ID.
        links.last_alive.remove(&node);
    }
}
