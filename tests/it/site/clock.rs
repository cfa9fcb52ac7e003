//! The clock of the central node is wrong. libfaketime gives meshd another one.

use crate::world::{
    World,
    dhcp::{self, As},
    eventually,
};
use meshd_types::{MacAddr, SystemUuid, Timestamp};
use std::{fs, time::Duration};

/// The environment of a process that begins at this time.
fn clock_at(time: &str) -> [(&'static str, String); 3] {
    let library =
        format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH);
    assert!(fs::exists(&library).unwrap(), "{library}: install Debian's package faketime");
    [
        ("LD_PRELOAD", library),
        ("FAKETIME", format!("@{time}")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

#[test]
fn meshd_refuses_to_start_with_a_clock_before_its_build() {
    let world = World::prepared("auto");
    let mut child = world.spawn(&clock_at("1970-01-02 00:00:00"));
    let ended = eventually("meshd refuses to run", || {
        child.try_wait().unwrap().ok_or("it runs".to_owned())
    });
    assert!(
        !ended.success() && world.log_text().contains("the clock says 1970-01-02"),
        "{}",
        world.log_text()
    );
    assert!(
        !world.path("state/ca").exists() && !world.path("state/store").exists(),
        "nothing has that time"
    );
}

#[test]
fn lease_of_a_clock_in_the_future_ends_after_the_clock_is_right() {
    let mut world = World::prepared("auto");
    world.start_with(&clock_at("2106-02-08 00:00:00"));
    let mac = MacAddr([0x52, 0x54, 0, 0, 0, 0x21]);
    let host = world.host(mac);
    let granted = host.inside(|| dhcp::obtain(mac, SystemUuid([0x21; 16]), As::Os)).unwrap();
    let expires = |world: &World| -> Timestamp {
        let leases = world.json(&["dhcp", "leases", "-o", "json"]);
        assert_eq!(leases[0]["address"], granted.address.to_string(), "{leases}");
        leases[0]["expires_at"].as_str().unwrap().parse().unwrap()
    };
    assert!(expires(&world).to_string().starts_with("2106-"));
    assert!(world.stop().success());
    world.start();
    let left = expires(&world).since(now());
    assert!(left <= Duration::from_secs(3600), "{left:?}");
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}
