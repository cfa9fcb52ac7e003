//! Somebody sets the clock, far forwards or far back: nobody becomes offline, and machines boot as
//! before.

use super::rig::{Machine, Rig};
use crate::world::World;
use meshd_model::fleet::{ConditionKind, Phase, Stage};
use meshd_model::series::SeriesRange;
use meshd_proto::{FromAgent, Heartbeat, Usage};
use meshd_store::MAX_SESSIONS_PER_MAC;
use std::time::Duration;

const YEAR_MS: i64 = 365 * 86_400_000;

#[tokio::test]
async fn clock_jump_keeps_nodes_online_and_able_to_boot() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    for jump in [YEAR_MS, -2 * YEAR_MS, 3_600_000, -3_600_000, 5 * YEAR_MS, -YEAR_MS] {
        rig.clock.jump(jump);
        rig.pass(Duration::from_secs(1)).await;
        let node = rig.node(id);
        assert_eq!(node.phase, Phase::Online, "after a jump of {jump} ms: {node:?}");
        // More often than sessions are kept: those of a later date do not drive out the newest.
        for boot in 0..=MAX_SESSIONS_PER_MAC {
            let before = machine.session();
            machine.power_off().await;
            machine.boot(Stage::Online).await;
            assert_ne!(
                machine.session(),
                before,
                "a power-on is a new session, boot {boot} after a jump of {jump} ms"
            );
            let node = rig.node(id);
            assert_eq!(
                node.phase,
                Phase::Online,
                "boot {boot} after a jump of {jump} ms: {node:?}"
            );
            // Nobody ordered its reboots, which is an alarm of its own.
            let mut others = node.conditions.iter().map(|condition| condition.kind);
            assert!(others.all(|kind| kind == ConditionKind::CertificateReplaced), "{node:?}");
            assert!(machine.heartbeat(0).await, "the link is there");
            rig.pass(Duration::from_secs(1)).await;
        }
    }
    assert_eq!(rig.events("discovered").len(), 1);
}

#[tokio::test]
async fn time_series_hold_over_clock_jumps_and_a_restart() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    // Each jump is undone, so that half of the samples have the right time.
    let jumps = [0, 0, YEAR_MS, -YEAR_MS, -30 * YEAR_MS, 30 * YEAR_MS, 7_200_000, -7_200_000];
    for (number, jump) in (1..).zip(jumps) {
        rig.clock.jump(jump);
        rig.clock.turn(Duration::from_secs(60));
        let usage = Usage { cpu_percent: Some(number), ..Usage::default() };
        let heartbeat = Heartbeat { usage: Some(usage), ..Heartbeat::default() };
        assert!(machine.say(FromAgent::Heartbeat(heartbeat)).await, "the link is there");
        // The second call is within the same minute.
        (0..2).for_each(|_| rig.central.series.sample_when_due(None));
    }
    drop(machine);
    let read = |rig: &Rig| {
        let now = rig.central.now();
        let range = SeriesRange::new(now.before(Duration::from_secs(3600)), now, None).unwrap();
        let online = rig.central.series.read("nodes_online", &range).unwrap();
        let node = rig.central.series.read_node(id, &range);
        let values = |points: &[meshd_model::series::SeriesPoint]| {
            points.iter().map(|point| point.value).collect::<Vec<_>>()
        };
        (values(&online), values(&node[0]))
    };
    let found = read(&rig);
    assert_eq!(found, (vec![1.0; 5], vec![1.0, 2.0, 4.0, 6.0, 8.0]));
    let rig = rig.restarted(&world);
    assert_eq!(read(&rig), found);
}
