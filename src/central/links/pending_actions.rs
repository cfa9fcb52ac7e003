//! Actions that nodes have not answered.

use super::{Links, Outstanding};
use meshd_proto::{ActionOrder, NodeAction};
use meshd_types::{NodeId, Timestamp};
use std::collections::BTreeMap;

impl Links {
    /// Returns nodes that may still start an ordered reboot, with the time of the order.
    pub(crate) fn pending_reboots(&self) -> BTreeMap<NodeId, Timestamp> {
        let now = self.env.now();
        let pending = |outstanding: &Outstanding| {
            let ActionOrder { node, expires_at, action, .. } = &outstanding.order;
            let NodeAction::Reboot = action;
            (*expires_at > now).then(|| (*node, expires_at.before(action.ttl())))
        };
        self.inner.lock().actions.values().filter_map(pending).collect()
    }
}
