//! Tasks: programs that an operator runs on the metal of a group's nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `jobs` | starts and cancels tasks, tells nodes what to do, watches time limits |
//! | `node_selection` | the nodes of a task, or the reason against each |
//! | `reports` | what nodes report of their tasks, and their output |

mod jobs;
mod node_selection;
mod reports;

pub use jobs::{JobError, RunJob};
pub(crate) use jobs::{edit_job, lose_node};

use super::{
    environment::Environment,
    links::Links,
    locks::{Ordered, TASK_ORDERS},
    orphans::OrphanWork,
};
use meshd_store::Outputs;
use std::sync::Arc;

/// Runs tasks on nodes.
pub struct Tasks {
    env: Arc<Environment>,
    links: Arc<Links>,
    orphans: Arc<OrphanWork>,
    outputs: Arc<Outputs>,
    /// Held by the thread that tells a node what is wanted of a task, so that the newest order is sent last.
    orders: Ordered<TASK_ORDERS, ()>,
}

impl Tasks {
    pub(super) fn new(env: Arc<Environment>, links: Arc<Links>, orphans: Arc<OrphanWork>) -> Self {
        let outputs = Arc::new(Outputs::new(&env.site().state_dir));
        Tasks { env, links, orphans, outputs, orders: Ordered::default() }
    }
}
