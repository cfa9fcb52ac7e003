//! Output of tasks: stores, reads and removes it.

use super::{Tasks, error::TaskError};
use meshd_proto::{
    FromCentral,
    task::{Output, OutputStored},
};
use meshd_store::{Chunk, LogLine};
use meshd_types::{NodeId, TaskId};
use std::{io, sync::Arc};
use tokio::sync::watch;

impl Tasks {
    /// Returns the output of a task from an offset on.
    pub async fn task_output(&self, id: TaskId, from: u64) -> Result<Chunk, TaskError> {
        let outputs = Arc::clone(&self.outputs);
        let read = tokio::task::spawn_blocking(move || outputs.read(id, from)).await;
        Ok(read.map_err(io::Error::other)??)
    }

    /// Returns a signal for new output of a task.
    pub async fn watch_task_output(&self, id: TaskId) -> Result<watch::Receiver<u64>, TaskError> {
        let outputs = Arc::clone(&self.outputs);
        let watched = tokio::task::spawn_blocking(move || outputs.watch(id)).await;
        Ok(watched.map_err(io::Error::other)??)
    }

    /// Removes the output of tasks that are no longer on record.
    pub(super) async fn remove_old_outputs(&self) {
        let env = Arc::clone(&self.env);
        let outputs = Arc::clone(&self.outputs);
        let tasks = move || env.store.read(|model| model.tasks().map(|task| task.id).collect());
        // The next call removes the rest.
        let _ = tokio::task::spawn_blocking(move || outputs.keep_only(tasks)).await;
    }

    /// Stores a piece of output if the task has the node. If that fails, no acknowledgement is
    /// sent, and the node repeats the piece.
    pub(crate) async fn store_output(&self, node: NodeId, output: Output) -> Option<FromCentral> {
        let Output { task, stream, at, data } = output;
        if !self.env.store.read(|model| model.task(task).is_some_and(|task| task.holds(node))) {
            // Output of an unknown or ended task is acknowledged and dropped, so that the node
            // stops repeating it.
            return Some(FromCentral::OutputStored(OutputStored { task, stream, end: u64::MAX }));
        }
        let line = LogLine { when: self.env.now(), node, stream, at, data };
        let outputs = Arc::clone(&self.outputs);
        let appended = tokio::task::spawn_blocking(move || outputs.append(task, line)).await;
        match appended.map_err(io::Error::other).and_then(|appended| appended) {
            Ok(end) => Some(FromCentral::OutputStored(OutputStored { task, stream, end })),
            Err(error) => {
                tracing::error!(%task, %node, %error, "the output of a task is not stored; check the disk");
                None
            }
        }
    }
}
