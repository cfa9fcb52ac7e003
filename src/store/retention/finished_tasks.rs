//! Retention of finished tasks: the oldest ones are removed for new ones.

use super::CLOCK_TOLERANCE;
use meshd_model::work::task::Task;
use meshd_types::{TaskId, Timestamp};
use std::collections::BTreeMap;

/// Maximum number of stored tasks. Tasks that are not finished are never removed.
const MAX_STORED_TASKS: usize = 512;

/// Returns the finished tasks to remove for one that is created now, the oldest first. Tasks of a
/// clock in the future come before them: they would be the newest ones for ever.
pub(crate) fn surplus_tasks(tasks: &BTreeMap<TaskId, Task>, now: Timestamp) -> Vec<TaskId> {
    let excess = (tasks.len() + 1).saturating_sub(MAX_STORED_TASKS);
    let latest = now.after(CLOCK_TOLERANCE);
    let mut finished: Vec<_> = tasks
        .values()
        .filter(|task| !task.is_open())
        .map(|task| (task.created_at <= latest, task.created_at, task.id))
        .collect();
    finished.sort_unstable();
    finished.into_iter().take(excess).map(|(.., id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::work::task::{Launcher, TaskSpec, TaskState};

    fn finished(number: usize, created_at: Timestamp) -> Task {
        let spec = TaskSpec {
            group: "pair".parse().expect("a name"),
            argv: vec!["/bin/true".to_owned()],
            nodes: 1,
            ranks_per_node: 1,
            launcher: Launcher::None,
            user: Default::default(),
            timeout_s: None,
            has_input: false,
        };
        let id = id(number);
        let mut task = Task::claim(id, spec, "uid:0".to_owned(), Vec::new(), created_at);
        task.state = TaskState::Succeeded;
        task
    }

    fn id(number: usize) -> TaskId {
        TaskId(u32::try_from(number).expect("small").to_be_bytes())
    }

    #[test]
    fn task_of_a_clock_in_the_future_is_removed_before_the_oldest() {
        let at = |second: usize| {
            Timestamp::from_millis((1_800_000_000 + i64::try_from(second).expect("small")) * 1000)
        };
        let mut tasks: BTreeMap<_, _> = (0..MAX_STORED_TASKS)
            .map(|number| (id(number), finished(number, at(number))))
            .collect();
        let now = at(MAX_STORED_TASKS);
        assert_eq!(surplus_tasks(&tasks, now), [id(0)]);
        tasks.insert(id(7), finished(7, at(4_000_000_000)));
        assert_eq!(surplus_tasks(&tasks, now), [id(7)]);
    }
}
