//! Retries stalled boots by the BMCs of their machines, as `[power]` of the site allows.

use crate::nodes::NodeOps;
use meshd_config::StallRetryPolicy;
use meshd_model::{
    fleet::Verb,
    operations::{STALL_RETRY, due_stall_retry},
};
use meshd_store::Model;
use meshd_trust::Role;
use meshd_types::{NodeId, Timestamp};
use std::sync::Arc;

/// Maximum number of nodes that one scan retries; the next scan retries the rest.
const MAX_RETRIED: usize = 64;

impl NodeOps {
    /// Gives an order to the BMC of each node whose retry is due. Call it after each scan of boots.
    pub async fn retry_stalled_boots(self: &Arc<Self>) {
        let site = self.env.site();
        let Some(policy) = site.power.stall_retries else { return };
        let now = self.env.now();
        let due = self.env.store.read(|model| due_retries(model, policy, now));
        for (id, number) in due {
            if self.links.is_linked(id) || self.bmc_of(id).is_err() {
                continue;
            }
            let mut audit = self.env.own_audit_context(Verb::Power);
            audit.reason = Some(format!("retry {number} of {} of a stalled boot", policy.count));
            if let Err(error) = self.order_one(id, STALL_RETRY, Role::Operator, &audit).await
                && self.env.allows(&format!("stall retry of {id}"))
            {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(node = %id, error, "cannot retry a stalled boot");
            }
        }
    }
}

fn due_retries(model: &Model, policy: StallRetryPolicy, now: Timestamp) -> Vec<(NodeId, u32)> {
    let due = model.nodes().filter_map(|node| {
        let mut boots = model.boots_of(node);
        boots.retain(|boot| !boot.is_staged());
        boots.first()?.stalled()?;
        let orders = model.operations().rev();
        let orders =
            orders.filter_map(|head| Some((head, model.node_operation(head.id, node.id)?)));
        Some((node.id, due_stall_retry(policy, node, &boots, orders, now)?))
    });
    due.take(MAX_RETRIED).collect()
}
