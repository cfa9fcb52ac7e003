//! Tasks in memory: all, open ones, and the task of each node.

use crate::{Model, tx::Change};
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

impl Tasks {
    pub(crate) fn put(&mut self, task: Task) {
        self.remove(task.id);
        self.claims.extend(task.holding().map(|node| (node, task.id)));
        if task.is_open() {
            self.open.insert(task.id);
        }
        self.all.insert(task.id, task);
    }

    pub(crate) fn apply(&mut self, changes: BTreeMap<TaskId, Change<Task>>) {
        for (id, change) in changes {
            match change {
                Change::Put(task) => self.put(task),
                Change::Remove => self.remove(id),
            }
        }
    }

    fn remove(&mut self, id: TaskId) {
        let Some(task) = self.all.remove(&id) else { return };
        self.open.remove(&id);
        for node in task.holding() {
            if self.claims.get(&node) == Some(&id) {
                self.claims.remove(&node);
            }
        }
    }

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
