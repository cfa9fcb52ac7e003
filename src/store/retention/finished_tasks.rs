//! Retention of finished tasks: the oldest ones are removed for new ones.

use meshd_model::work::task::Task;
use meshd_types::TaskId;
use std::collections::BTreeMap;

/// Maximum number of stored tasks. Tasks that are not finished are never removed.
const MAX_STORED_TASKS: usize = 512;

/// Returns the finished tasks to remove for a new one, the oldest first.
pub(crate) fn surplus_tasks(tasks: &BTreeMap<TaskId, Task>) -> Vec<TaskId> {
    let excess = (tasks.len() + 1).saturating_sub(MAX_STORED_TASKS);
    let mut finished: Vec<_> = tasks
        .values()
        .filter(|task| !task.is_open())
        .map(|task| (task.created_at, task.id))
        .collect();
    finished.sort_unstable();
    finished.into_iter().take(excess).map(|(_, id)| id).collect()
}
