//! The end of a group, simulated by a folder, so that the test controls when processes enter.

use super::*;
use std::future::Future;
use tokio::{task::yield_now, time::timeout};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls `end` until a condition is true.
async fn until(end: &mut (impl Future<Output = ()> + Unpin), condition: impl Fn() -> bool) {
    let polls = async {
        while !condition() {
            yield_now().await;
        }
    };
    tokio::select! {
        () = end => panic!("the group ended with processes in it"),
        done = timeout(TIMEOUT, polls) => done.expect("in time"),
    }
}

#[tokio::test]
async fn process_that_enters_a_killed_group_is_killed() {
    let dir = tempfile::tempdir().expect("a folder");
    let group = Cgroup { path: dir.path().join("base/job") };
    let kill = group.path.join("cgroup.kill");
    let events = group.path.join("cgroup.events");
    let late = group.path.join("x");
    fs::create_dir_all(&group.path).expect("a folder");
    fs::write(&kill, "").expect("written");
    fs::write(&events, "populated 1\nfrozen 0\n").expect("written");
    let killed = || fs::read_to_string(&kill).is_ok_and(|text| text == "1");
    let mut end = Box::pin(group.kill_and_remove());
    until(&mut end, killed).await;
    // A process enters before the killed ones have ended.
    fs::write(&kill, "").expect("written");
    until(&mut end, killed).await;
    // All have ended, and a process enters between check and removal.
    fs::write(&late, "").expect("written");
    fs::write(&kill, "").expect("written");
    fs::write(&events, "populated 0\nfrozen 0\n").expect("written");
    until(&mut end, killed).await;
    fs::write(&kill, "").expect("written");
    until(&mut end, killed).await;
    for file in [&kill, &events, &late] {
        fs::remove_file(file).expect("removed");
    }
    timeout(TIMEOUT, end).await.expect("the group is empty");
    assert!(!dir.path().join("base").exists());
}

/// A folder as hierarchy, with these controllers.
fn hierarchy(controllers: &str) -> (tempfile::TempDir, Cgroups, Cgroup) {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("cgroup.controllers"), controllers).expect("written");
    let groups = Cgroups { base: dir.path().join("meshd-1") };
    let group = groups.group("0000000a".parse().expect("a task ID"));
    fs::create_dir_all(&group.path).expect("a folder");
    (dir, groups, group)
}

#[test]
fn task_limits_leave_memory_and_processes_for_the_agent() {
    let (dir, groups, group) = hierarchy("cpuset cpu memory pids\n");
    groups.limit(&group, 64 << 30).expect("offered");
    let read = |file: &str| fs::read_to_string(group.path.join(file)).unwrap_or_default();
    let limit: u64 = read("memory.max").parse().expect("a number");
    assert!(limit < 58 << 30 && limit > 57 << 30, "{limit}");
    assert_eq!((read("memory.oom.group").as_str(), read("pids.max").as_str()), ("1", "32768"));
    let enabled =
        fs::read_to_string(dir.path().join("meshd-1/cgroup.subtree_control")).expect("written");
    assert_eq!(enabled, "+pids");
}

#[test]
fn task_is_refused_if_its_limits_cannot_be_set() {
    let (dir, groups, group) = hierarchy("memory\n");
    fs::create_dir(dir.path().join("meshd-1/cgroup.subtree_control"))
        .expect("a folder instead of the file");
    assert!(groups.limit(&group, 1 << 30).is_err());
    let (_dir, groups, group) = hierarchy("cpu\n");
    groups.limit(&group, 1 << 30).expect("controllers that the kernel lacks are skipped");
    assert!(!group.path.join("memory.max").exists());
}
