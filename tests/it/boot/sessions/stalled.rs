//! A boot that stops is stalled, by the name of the stage that is missing.

use super::{
    conditions, doctor, finding,
    rig::{LONG, Machine, Rig},
};
use crate::world::{World, dhcp::As, eventually, node::PxeNode};
use meshd_model::fleet::{ConditionKind, Stage};
use std::time::Duration;

#[tokio::test]
async fn stalled_boot_names_its_missing_stage_and_can_continue() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    // The image of the world is for Alpine: no boot of it reaches the root.
    let stages: Vec<Stage> = Stage::ALL.into_iter().filter(|stage| *stage != Stage::Root).collect();
    for (before, pair) in stages.windows(2).enumerate() {
        let mut machine = Machine::new(&rig, before as u8 + 1);
        machine.boot(pair[0]).await;
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!(rig.events("boot_stalled").len(), before, "a minute is no stall");
        rig.pass(LONG).await;
        rig.pass(LONG).await;
        let stalls = rig.events("boot_stalled");
        assert_eq!(stalls.len(), before + 1, "one event for one stall: {stalls:?}");
        let stall = stalls.last().unwrap();
        let expected_detail = format!("stopped after {}, {} is missing", pair[0], pair[1]);
        assert!(stall.detail.contains(&expected_detail), "{expected_detail} in {}", stall.detail);
        assert_eq!(stall.session, Some(machine.session()));
        if pair[0] < Stage::Script {
            assert!(
                stall.node.is_none() && stall.detail.contains(&machine.mac.to_string()),
                "{stall:?}"
            );
            // Its session is stale; it would begin anew.
            continue;
        }
        let id = machine.id();
        assert_eq!(rig.condition(id, ConditionKind::BootStalled).as_ref(), Some(&stall.detail));
        match pair[1] {
            // Its capability or its token is over by then: it begins anew.
            Stage::Overlay | Stage::Enrolled => machine.boot(Stage::Online).await,
            next => machine.step(next).await,
        }
        rig.pass(Duration::from_secs(6)).await;
        assert_eq!(rig.condition(id, ConditionKind::BootStalled), None, "{} came", pair[1]);
        assert_eq!(rig.events("cleared").iter().filter(|event| event.node == Some(id)).count(), 1);
        // It may not stand still again while the others are looked at.
        machine.power_off().await;
        machine.boot(Stage::Online).await;
        machine.power_off().await;
    }
}

#[tokio::test]
async fn boot_stall_survives_kill_9_and_clears_on_progress() {
    let mut world = World::prepared("auto");
    {
        let rig = Rig::new(&world);
        Machine::new(&rig, 1).boot(Stage::Overlay).await;
        rig.pass(LONG).await;
        assert_eq!(rig.events("boot_stalled").len(), 1);
    }
    for _ in 0..2 {
        world.start();
        assert!(conditions(&world).contains(&"boot_stalled".to_owned()));
        world.kill();
    }
    world.start();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let timeline = world.json(&["node", "timeline", &id, "-o", "json"]);
    assert_eq!(
        (&timeline["result"], &timeline["stalls"][0]["missing"]),
        (&"stalled".into(), &"os_dhcp".into()),
        "{timeline}"
    );
    let findings = doctor(&world);
    assert_eq!(finding(&findings, "stalled boots")["status"], "warn", "{findings}");
    PxeNode::new(&world, 1).dhcp(As::Os);
    eventually("the stall is over", || {
        let left = conditions(&world);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert_eq!(world.events("boot_stalled").len(), 1, "it was told once, whatever was killed");
}
