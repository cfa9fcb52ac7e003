//! Tasks: programs that an operator runs on the metal of a group's nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `lifecycle` | starts and cancels tasks, tells nodes what to do, watches time limits |
//! | `node_selection` | the nodes of a task, or the reason against each |
//! | `node_reports` | what nodes report of their tasks, and their output |

mod lifecycle;
mod node_selection;
mod node_reports;

pub use lifecycle::{TaskError, TaskRequest, TaskTarget};
pub(crate) use lifecycle::{edit_task, lose_node};

use super::{
    environment::Environment,
    links::Links,
    locks::{Ordered, TASK_ORDERS},
    orphan_workloads::OrphanWork,
};
use meshd_proto::task::Stream;
use meshd_store::{Limits, PieceLogs};
use meshd_types::TaskId;
use std::sync::Arc;

/// The output of a task: 8 MiB.
const OUTPUT_LIMITS: Limits = Limits { segment: 2 << 20, newest: 3, keep_open: true };

/// Runs tasks on nodes.
pub struct Tasks {
    env: Arc<Environment>,
    links: Arc<Links>,
    orphans: Arc<OrphanWork>,
    outputs: Arc<PieceLogs<TaskId, Stream>>,
    /// Held by the thread that tells a node what is wanted of a task, so that the newest order is sent last.
    orders: Ordered<TASK_ORDERS, ()>,
}

impl Tasks {
    pub(super) fn new(env: Arc<Environment>, links: Arc<Links>, orphans: Arc<OrphanWork>) -> Self {
        let outputs = Arc::new(PieceLogs::new(env.site().state_dir.join("jobs"), OUTPUT_LIMITS));
        Tasks { env, links, orphans, outputs, orders: Ordered::default() }
    }
}
