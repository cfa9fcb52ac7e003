//! Tasks in memory: all, open ones, and the task of each node.

use crate::{Model, records::RecordIndex};
use meshd_model::work::task::Task;
use meshd_types::{NodeId, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// All tasks, with derived indexes.
#[derive(Default)]
pub(crate) struct Tasks {
    all: BTreeMap<TaskId, Task>,
    /// The task that occupies a node.
    claims: BTreeMap<NodeId, TaskId>,
    /// Tasks that are not settled.
    open: BTreeSet<TaskId>,
}

impl RecordIndex<TaskId, Task> for Tasks {
    fn put_record(&mut self, id: TaskId, task: Task) -> Option<Task> {
        let before = self.remove_record(&id);
        self.claims.extend(task.holding().map(|node| (node, id)));
        if task.is_open() {
            self.open.insert(id);
        }
        self.all.insert(id, task);
        before
    }

    fn remove_record(&mut self, id: &TaskId) -> Option<Task> {
        let task = self.all.remove(id)?;
        self.open.remove(id);
        for node in task.holding() {
            if self.claims.get(&node) == Some(id) {
                self.claims.remove(&node);
            }
        }
        Some(task)
    }
}

impl Tasks {
    pub(crate) fn all(&self) -> &BTreeMap<TaskId, Task> {
        &self.all
    }
}

impl Model {
    /// All tasks, by ID.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.all.values()
    }

    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.all.get(&id)
    }

    /// The task that occupies a node.
    pub fn task_on(&self, node: NodeId) -> Option<&Task> {
        self.tasks.claims.get(&node).and_then(|id| self.task(*id))
    }

    /// Tasks that run or end, or whose nodes are not known to be free.
    pub fn open_tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.open.iter().filter_map(|id| self.task(*id))
    }
}
