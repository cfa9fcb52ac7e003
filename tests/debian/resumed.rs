//! A root that comes from two servers: the first one is lost while it sends, the central node sends
//! the rest.

use crate::{
    racks::{BOOT, OrEnd, SOON},
    tethered::MIRROR,
};
use meshd_lab::{Neighbour, Rack, Wait};

/// Bytes per second of the first server: a root takes it half a minute.
pub const RATE: &str = "8m";

/// Takes the server away while it sends to one of these nodes, which goes on elsewhere.
pub fn loses_its_server(rack: &Rack, places: &[u8], mirror: Neighbour) {
    let place = rack.wait(BOOT, "a node that fetches its root", |rack| {
        let fetches = |place: &&u8| received(&rack.serial(**place)).is_some_and(|mib| mib > 0);
        Ok(Wait::some(places.iter().find(fetches).copied(), "none"))
    });
    let place = place.or_end();
    drop(mirror);
    let lost = format!("stage1: fetch http://{MIRROR}:8080/blob/");
    let serial = rack.wait(SOON, "the node goes on elsewhere", |rack| {
        let serial = rack.serial(place);
        let is_on = serial.split_once(&lost).is_some_and(|(_, rest)| received(rest).is_some());
        Ok(Wait::some(is_on.then_some(serial), "it waits"))
    });
    let serial = serial.or_end();
    let (before, after) = serial.split_once(&lost).expect("it was lost");
    let cause = after.lines().next().unwrap_or_default();
    assert!(cause.contains("/root: the connection "), "{cause}");
    let next = after.lines().find_map(received);
    assert!(received(before) <= next, "it keeps what it has: {cause}");
}

/// The last number of MiB that a node has told of its root.
fn received(serial: &str) -> Option<u64> {
    let told = |line: &str| {
        let (_, line) = line.split_once("stage1: root: ")?;
        line.split_once(" of ")?.0.parse().ok()
    };
    serial.lines().rev().find_map(told)
}
