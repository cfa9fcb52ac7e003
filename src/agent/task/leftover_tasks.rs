//! Ends the tasks of an earlier agent and removes their files.

use super::{
    TaskEvent, TaskRecord, Tasks, cgroup::Cgroups, mounts, scratch_storage::Storage, storage,
    task_runner,
};
use meshd_proto::task::{TaskFault, TaskNodeState};
use meshd_types::TaskId;
use std::{collections::BTreeSet, fs};
use tokio::sync::{mpsc, watch};

impl Tasks {
    /// Starts to end each leftover task, and records it as failed. In the background, because
    /// processes that hang in the kernel must not block the link.
    pub(super) fn end_leftovers(&mut self) {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut leftovers: BTreeSet<TaskId> =
            folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        if let Ok(cgroups) = &self.cgroups {
            leftovers.extend(cgroups.tasks());
        }
        for task in leftovers {
            tracing::warn!(%task, "killing a task of an earlier agent");
            let (release, release_receiver) = watch::channel(false);
            let cgroups = self.cgroups.clone().ok();
            let storage = storage(&self.folder, task);
            self.runners.spawn(end(task, cgroups, storage, release_receiver, self.events.clone()));
            let detail =
                "the agent restarted while the task ran; the remaining processes were killed"
                    .to_owned();
            let state = TaskNodeState::Failed { kind: TaskFault::AgentRestarted, detail };
            self.tasks
                .insert(task, TaskRecord { release, has_runner: true, ..TaskRecord::ended(state) });
        }
    }
}

async fn end(
    task: TaskId,
    cgroups: Option<Cgroups>,
    storage: Storage,
    mut release: watch::Receiver<bool>,
    events: mpsc::Sender<TaskEvent>,
) {
    if let Some(cgroups) = cgroups {
        cgroups.group(task).kill_and_remove().await;
    }
    mounts::kill_processes(&storage.shm()).await;
    task_runner::remove_storage(storage).await;
    if task_runner::wait_for_release(&mut release).await {
        let _ = events.send(TaskEvent::Released(task)).await;
    }
}
