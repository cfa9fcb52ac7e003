//! Supervises all tasks: the first that ends stops the others; each is joined.

use super::DaemonError;
use std::{collections::HashMap, future::Future, time::Duration};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Timeout for tasks to finish their work after the stop signal.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct DaemonTasks {
    set: JoinSet<Result<(), DaemonError>>,
    names: HashMap<Id, &'static str>,
}

impl DaemonTasks {
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), DaemonError>> + Send + 'static,
    ) {
        let handle = self.set.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Spawns a task that returns no error.
    pub(super) fn spawn_infallible(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn(name, async {
            task.await;
            Ok(())
        });
    }

    /// Waits for the signal or for a task that ends by itself, which is always a fault. Then stops
    /// and joins all tasks.
    pub(super) async fn until_stopped(
        mut self,
        signal: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) -> Result<(), DaemonError> {
        // Tasks may end by the same signal before this is polled: that is no fault.
        let mut outcome = tokio::select! {
            biased;
            () = signal => Ok(()),
            Some(ended) = self.set.join_next_with_id() => {
                self.finished(ended).and_then(|task| Err(DaemonError::EndedEarly { task }))
            }
        };
        stop.cancel();
        let drained = tokio::time::timeout(DRAIN_DEADLINE, async {
            while let Some(ended) = self.set.join_next_with_id().await {
                if let Err(error) = self.finished(ended)
                    && outcome.is_ok()
                {
                    outcome = Err(error);
                }
            }
        })
        .await;
        if drained.is_err() {
            tracing::warn!(
                tasks = self.set.len(),
                "tasks of meshd exceed the shutdown deadline; aborting them"
            );
            self.set.shutdown().await;
        }
        outcome
    }

    /// Returns the task that ended without an error, or its error.
    fn finished(
        &self,
        ended: Result<(Id, Result<(), DaemonError>), JoinError>,
    ) -> Result<&'static str, DaemonError> {
        let name = |id| self.names.get(&id).copied().unwrap_or("?");
        match ended {
            Ok((id, result)) => result.map(|()| name(id)),
            Err(error) => Err(DaemonError::Panicked { task: name(error.id()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spawns a task that ends after the stop signal.
    fn spawn_patient(tasks: &mut DaemonTasks, stop: &CancellationToken) {
        let watched = stop.clone();
        tasks.spawn_infallible("patient", async move { watched.cancelled().await });
    }

    #[tokio::test]
    async fn panic_in_task_stops_other_tasks_and_is_reported() {
        let stop = CancellationToken::new();
        let mut tasks = DaemonTasks::default();
        spawn_patient(&mut tasks, &stop);
        tasks.spawn("hasty", async { panic!("on purpose") });
        let outcome = tasks.until_stopped(std::future::pending(), &stop).await;
        assert!(matches!(outcome, Err(DaemonError::Panicked { task: "hasty" })), "{outcome:?}");
    }

    #[tokio::test]
    async fn task_that_ends_by_the_same_signal_is_no_fault() {
        for _ in 0..64 {
            let stop = CancellationToken::new();
            let mut tasks = DaemonTasks::default();
            spawn_patient(&mut tasks, &stop);
            stop.cancel();
            tokio::task::yield_now().await;
            assert!(tasks.until_stopped(stop.cancelled(), &stop).await.is_ok());
        }
    }

    #[tokio::test]
    async fn signal_stops_all_tasks_gracefully() {
        let stop = CancellationToken::new();
        let mut tasks = DaemonTasks::default();
        spawn_patient(&mut tasks, &stop);
        assert!(tasks.until_stopped(async {}, &stop).await.is_ok());
    }
}
