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
