//! How a group ends, with a folder in place of the kernel's, so that the test says who enters when.

use super::*;
use std::future::Future;
use tokio::{task::yield_now, time::timeout};

const PATIENCE: Duration = Duration::from_secs(60);

/// Lets `end` go on until a file of the group says so.
async fn until(end: &mut (impl Future<Output = ()> + Unpin), is: impl Fn() -> bool) {
    let looks = async {
        while !is() {
            yield_now().await;
        }
    };
    tokio::select! {
        () = end => panic!("it is over while something is left"),
        looked = timeout(PATIENCE, looks) => looked.expect("in time"),
    }
}

#[tokio::test]
async fn who_enters_a_group_after_it_was_killed_is_killed_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let group = Cgroup { path: dir.path().join("base/job") };
    let (kill, events, late) = (group.path.join("cgroup.kill"), group.path.join("cgroup.events"), group.path.join("x"));
    fs::create_dir_all(&group.path).expect("a folder");
    fs::write(&kill, "").expect("written");
    fs::write(&events, "populated 1\nfrozen 0\n").expect("written");
    let killed = || fs::read_to_string(&kill).is_ok_and(|text| text == "1");
    let mut end = Box::pin(group.end());
    until(&mut end, killed).await;
    // That was for those who were in it. Another one enters before the last of them has gone.
    fs::write(&kill, "").expect("written");
    until(&mut end, killed).await;
    // All have gone, and one more enters between the look and the removal.
    fs::write(&late, "").expect("written");
    fs::write(&kill, "").expect("written");
    fs::write(&events, "populated 0\nfrozen 0\n").expect("written");
    until(&mut end, killed).await;
    fs::write(&kill, "").expect("written");
    until(&mut end, killed).await;
    for file in [&kill, &events, &late] {
        fs::remove_file(file).expect("removed");
    }
    timeout(PATIENCE, end).await.expect("nothing is left");
    assert!(!dir.path().join("base").exists());
}

/// A hierarchy that is a folder, whose kernel offers these controllers.
fn hierarchy(controllers: &str) -> (tempfile::TempDir, Cgroups, Cgroup) {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("cgroup.controllers"), controllers).expect("written");
    let groups = Cgroups { base: dir.path().join("meshd-1") };
    let group = groups.of("0000000a".parse().expect("a task ID"));
    fs::create_dir_all(&group.path).expect("a folder");
    (dir, groups, group)
}

#[test]
fn task_gets_no_more_memory_and_processes_than_leave_room_for_the_agent() {
    let (dir, groups, group) = hierarchy("cpuset cpu memory pids\n");
    groups.limit(&group, 64 << 30).expect("offered");
    let read = |file: &str| fs::read_to_string(group.path.join(file)).unwrap_or_default();
    let most: u64 = read("memory.max").parse().expect("a number");
    assert!(most < 58 << 30 && most > 57 << 30, "{most}");
    assert_eq!((read("memory.oom.group").as_str(), read("pids.max").as_str()), ("1", "32768"));
    let enabled = fs::read_to_string(dir.path().join("meshd-1/cgroup.subtree_control")).expect("written");
    assert_eq!(enabled, "+pids");
}

#[test]
fn task_is_refused_where_its_limits_cannot_be_set() {
    let (dir, groups, group) = hierarchy("memory\n");
    fs::create_dir(dir.path().join("meshd-1/cgroup.subtree_control")).expect("a folder in its place");
    assert!(groups.limit(&group, 1 << 30).is_err());
    let (_dir, groups, group) = hierarchy("cpu\n");
    groups.limit(&group, 1 << 30).expect("this kernel has them elsewhere");
    assert!(!group.path.join("memory.max").exists());
}
