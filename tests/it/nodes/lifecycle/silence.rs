//! Offline: when, and when not.

use crate::{
    boot::sessions::rig::{Machine, Rig},
    world::World,
};
use meshd_model::fleet::{Phase, Stage};
use std::time::Duration;

/// `[agent].offline_after` of the site.
const OFFLINE_AFTER: u64 = 20;
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn silent_node_is_offline_within_one_scan_of_its_deadline() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    // Heartbeats at any distance from a look: milliseconds after, or before.
    for late in [1, 500, 999] {
        rig.pass(SECOND).await;
        rig.clock.turn(Duration::from_millis(late));
        assert!(machine.heartbeat(0).await);
        rig.clock.turn(Duration::from_millis(1000 - late));
        rig.central.watch().await;
        // Since the heartbeat.
        let mut silent = Duration::from_millis(1000 - late);
        while silent <= SECOND * u32::try_from(OFFLINE_AFTER).unwrap() {
            assert_eq!(rig.node(id).phase, Phase::Online, "{silent:?} after its last word");
            rig.pass(SECOND).await;
            silent += SECOND;
        }
        assert_eq!(rig.node(id).phase, Phase::Offline, "{silent:?} after its last word");
        assert!(silent <= SECOND * u32::try_from(OFFLINE_AFTER + 1).unwrap(), "the worst case");
        machine.power_off().await;
        machine.link_up().await;
        machine.step(Stage::Online).await;
        assert_eq!(rig.node(id).phase, Phase::Online);
    }
}

#[tokio::test]
async fn node_with_heartbeats_stays_online_despite_rare_scans() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    for _ in 0..50 {
        rig.pass(SECOND * 4).await;
        assert!(machine.heartbeat(0).await);
        rig.clock.turn(SECOND);
        assert_eq!(rig.node(machine.id()).phase, Phase::Online);
    }
    assert!(rig.events("phase").iter().all(|event| !event.detail.ends_with("offline")));
}

#[tokio::test]
async fn restart_gives_nodes_the_full_offline_timeout_to_reconnect() {
    let world = World::prepared("auto");
    let (id, mac) = {
        let rig = Rig::new(&world);
        let mut machine = Machine::new(&rig, 1);
        machine.boot(Stage::Online).await;
        (machine.id(), machine.mac)
    };
    // Hours later, as far as the wall clock goes.
    let rig = Rig::new(&world);
    assert_eq!(rig.central.boot.node_of_mac(mac), Some(id));
    for _ in 0..=OFFLINE_AFTER {
        assert_eq!(rig.node(id).phase, Phase::Online, "it has had no time to connect");
        rig.pass(SECOND).await;
    }
    assert_eq!(rig.node(id).phase, Phase::Offline, "it did not come");
}
