//! Tasks: programs that run directly on the nodes of a group; and shells of nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `error` | errors of orders about tasks |
//! | `input` | connects a caller to the standard input of a task |
//! | `lifecycle` | starts and cancels tasks, sends orders to nodes |
//! | `node_loss` | fails a task whose node is lost, or whose time is over |
//! | `node_selection` | selects the nodes of a task, or gives the reason against each |
//! | `node_reports` | processes reports of nodes: state, release |
//! | `output` | stores, reads and removes output |
//! | `shell` | shells of nodes for administrators |

mod error;
mod input;
mod lifecycle;
mod node_loss;
mod node_reports;
mod node_selection;
mod output;
mod shell;

pub use error::TaskError;
pub use input::InputError;
pub use lifecycle::TaskRequest;
pub(crate) use lifecycle::{edit_task, entry_of_node, entry_of_task};
pub(crate) use node_loss::mark_node_lost;
pub use node_selection::TaskTarget;
pub use shell::ShellError;

use super::{environment::Environment, links::Links, locks::Leaf, reported_work::ReportedWork};
use meshd_proto::task::Stream;
use meshd_store::{ChunkLogs, Limits};
use meshd_types::TaskId;
use node_loss::Ages;
use std::sync::Arc;

/// Limits the output of a task to 8 MiB, 2 MiB of which its nodes share equally.
const OUTPUT_LIMITS: Limits = Limits { segment: 2 << 20, newest: 3, keep_open: true };

/// Runs tasks on nodes.
pub struct Tasks {
    env: Arc<Environment>,
    links: Arc<Links>,
    reported: Arc<ReportedWork>,
    outputs: Arc<ChunkLogs<TaskId, Stream>>,
    ages: Leaf<Ages>,
}

impl Tasks {
    pub(super) fn new(
        env: Arc<Environment>,
        links: Arc<Links>,
        reported: Arc<ReportedWork>,
    ) -> Self {
        let outputs = Arc::new(ChunkLogs::new(env.site().state_dir.join("tasks"), OUTPUT_LIMITS));
        Tasks { env, links, reported, outputs, ages: Leaf::default() }
    }
}
