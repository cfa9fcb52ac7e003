//! Containers: their records, the placement of their replicas, and what nodes report of them.
//!
//! | module | content |
//! | --- | --- |
//! | `error` | errors of orders about containers |
//! | `lifecycle` | runs, starts, stops and deletes containers; desired state of a node |
//! | `node_loss` | frees the replicas of nodes that are fenced, removed or drained, or that boot again |
//! | `node_reports` | processes reports of nodes |
//! | `placement` | chooses nodes for replicas |
//! | `sessions` | connects a caller to the log of a replica, and to a program in it |

mod error;
mod lifecycle;
mod node_loss;
mod node_reports;
mod placement;
mod sessions;

pub use error::ContainerError;
pub(crate) use node_loss::{
    move_replicas, record_replica_reboot, release_replicas, remove_replicas,
};
pub use sessions::{ReplicaExecRequest, ReplicaSessionError};

use super::{environment::Environment, links::Links, reported_work::ReportedWork, vms::Vms};
use std::sync::Arc;

/// Maximum number of containers of a site.
pub const MAX_SITE_CONTAINERS: usize = 1000;

/// The containers of the site.
pub struct Containers {
    env: Arc<Environment>,
    links: Arc<Links>,
    reported: Arc<ReportedWork>,
    /// Images are volumes.
    vms: Arc<Vms>,
}

impl Containers {
    pub(super) fn new(
        env: Arc<Environment>,
        links: Arc<Links>,
        reported: Arc<ReportedWork>,
        vms: Arc<Vms>,
    ) -> Self {
        Containers { env, links, reported, vms }
    }
}
