//! Orders to one node in one line, whatever its revision, by an admin.

use meshd_api::DrainPolicy;
use meshd_central::{NodeOps, OperateError};
use meshd_model::{
    fleet::{AuditContext, Node},
    operations::NodeOrder,
};
use meshd_trust::Role;
use meshd_types::{NodeId, ProfileName};
use std::sync::Arc;

type Ordered = Result<Node, OperateError>;

/// Orders without input.
macro_rules! single_orders {
    ($($verb:ident: $order:expr;)*) => {
        $(async fn $verb(&self, id: NodeId, audit: &AuditContext) -> Ordered {
            self.give(id, $order, audit).await
        })*
    };
}

pub trait SingleOrders {
    async fn give(&self, id: NodeId, order: NodeOrder, audit: &AuditContext) -> Ordered;

    single_orders! {
        approve: NodeOrder::Approve { moved: false };
        reject: NodeOrder::Reject;
        quarantine: NodeOrder::Quarantine;
        release: NodeOrder::Release;
        drain: NodeOrder::Drain { workloads: DrainPolicy::Wait, grace_s: None };
        maintain: NodeOrder::Maintenance;
        resume: NodeOrder::Resume;
        remove: NodeOrder::Remove;
        fence: NodeOrder::Fence;
        reboot: NodeOrder::Reboot;
    }

    /// [`DrainPolicy::Stop`] stops the work of the node within `grace_s` seconds, or within the
    /// grace time of each VM.
    async fn drain_with(
        &self,
        id: NodeId,
        workloads: DrainPolicy,
        grace_s: Option<u32>,
        audit: &AuditContext,
    ) -> Ordered {
        self.give(id, NodeOrder::Drain { workloads, grace_s }, audit).await
    }

    async fn assign_profile(
        &self,
        id: NodeId,
        profile: ProfileName,
        audit: &AuditContext,
    ) -> Ordered {
        self.give(id, NodeOrder::AssignProfile { profile }, audit).await
    }
}

impl SingleOrders for Arc<NodeOps> {
    async fn give(&self, id: NodeId, order: NodeOrder, audit: &AuditContext) -> Ordered {
        self.order_one(id, order, Role::Admin, audit).await
    }
}
