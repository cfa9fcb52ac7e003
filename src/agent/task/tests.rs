//! Removal of leftover tasks.

use super::*;
use futures_util::FutureExt as _;
use std::{fs, sync::mpsc::sync_channel};
use tokio::runtime::Builder;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The only blocking thread is busy, so any removal in the meantime would run on the thread of the
/// agent.
#[test]
fn removal_of_task_files_does_not_block_the_agent() {
    let dir = tempfile::tempdir().expect("a folder");
    let task = TaskId([7; 4]);
    let left = dir.path().join(task.to_string());
    fs::create_dir_all(left.join("work/many")).expect("a folder");
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (free, taken) = sync_channel::<()>(0);
        let busy = tokio::task::spawn_blocking(move || taken.recv());
        let mut tasks = Tasks::open(
            dir.path(),
            &dir.path().join("cgroup"),
            "0000000a".parse().expect("a node ID"),
            CentralServices { address: [10, 77, 0, 1].into(), ports: [8080, 8443] },
        );
        let gone = || TaskEntry { task, desired_state: TaskDesiredState::Gone };
        for generation in [1, 2] {
            tasks.apply(generation, gone());
            let Some(FromAgent::Report(taken)) = tasks.next().now_or_never() else {
                panic!("no report")
            };
            assert_eq!(taken.observed, generation);
        }
        for _ in 0..1000 {
            assert_eq!(tasks.next().now_or_never(), None);
            tokio::task::yield_now().await;
        }
        assert!(left.exists(), "the thread of the agent removed the files");
        free.send(()).expect("the thread waits");
        busy.await.expect("no panic").expect("released");
        let released = timeout(TIMEOUT, tasks.next()).await.expect("in time");
        let state = SectionReport::Tasks(TaskUpdate::Released { task });
        assert_eq!(released, FromAgent::Report(NodeReport { observed: 2, state }));
        assert!(!left.exists());
    });
}
