//! Boots that all fail are a loop: held in iPXE, and let go by a word.

use super::{
    conditions, doctor, finding,
    rig::{Machine, Rig, ordered},
};
use crate::world::{World, node::PxeNode, single_orders::SingleOrders as _};
use meshd_model::fleet::{ConditionKind, Phase, Stage, Verb};
use std::time::Duration;

#[tokio::test]
async fn boot_loop_is_quarantined_in_ipxe_until_released() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    for boot in 0..3 {
        machine.boot(Stage::Overlay).await;
        rig.pass(Duration::from_secs(120)).await;
        assert_ne!(rig.node(machine.id()).phase, Phase::Quarantined, "boot {boot}");
    }
    for stage in [Stage::Dhcp, Stage::Loader, Stage::IpxeDhcp, Stage::Script] {
        machine.step(stage).await;
    }
    let id = machine.id();
    let held = rig.node(id);
    assert_eq!(held.phase, Phase::Quarantined, "{held:?}");
    assert!(
        machine.script.contains("quarantined") && machine.script.contains("boot_loop"),
        "{}",
        machine.script
    );
    assert!(machine.script.contains("meshd node release"), "{}", machine.script);
    let session = machine.session();
    for _ in 0..3 * 60 {
        rig.pass(Duration::from_secs(20)).await;
        for again in ["sleep ", "ifconf ", "chain "] {
            assert!(
                machine.script.lines().any(|line| line.starts_with(again)),
                "{again} in {}",
                machine.script
            );
        }
        assert!(
            !machine.script.contains("reboot") && !machine.script.contains("exit"),
            "no way through the self test"
        );
        machine.step(Stage::IpxeDhcp).await;
        machine.step(Stage::Script).await;
        assert!(!machine.script.contains("/overlay/"), "no capability while it is held");
    }
    assert_eq!(machine.session(), session, "one power-on, however long it waits");
    assert_eq!((rig.events("boot_loop").len(), rig.events("boot_stalled").len()), (1, 0));
    assert_eq!(rig.events("boot_refused").len(), 1, "one event for one reason");
    rig.central.nodes.release(id, &ordered(Verb::Release)).await.unwrap();
    assert_eq!(rig.condition(id, ConditionKind::BootLoop), None);
    machine.step(Stage::IpxeDhcp).await;
    for stage in Stage::ALL.into_iter().filter(|stage| *stage >= Stage::Script) {
        machine.step(stage).await;
    }
    let node = rig.node(id);
    assert_eq!((node.phase, node.conditions.is_empty()), (Phase::Online, true), "{node:?}");
    machine.power_off().await;
    // Counted anew: two failures are none, the third is the next loop.
    for _ in 0..3 {
        machine.boot(Stage::Overlay).await;
        rig.pass(Duration::from_secs(120)).await;
        assert_eq!(rig.node(id).phase, Phase::Booting);
    }
    machine.boot(Stage::Script).await;
    assert_eq!(rig.node(id).phase, Phase::Quarantined);
}

#[tokio::test]
async fn release_of_unapproved_machine_is_no_approval() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    for _ in 0..3 {
        machine.boot(Stage::Overlay).await;
        rig.pass(Duration::from_secs(120)).await;
    }
    machine.boot(Stage::Script).await;
    assert_eq!(rig.node(machine.id()).phase, Phase::Quarantined);
    rig.central.nodes.release(machine.id(), &ordered(Verb::Release)).await.unwrap();
    assert_eq!(rig.node(machine.id()).phase, Phase::Discovered);
    machine.step(Stage::IpxeDhcp).await;
    for stage in [Stage::Script, Stage::Overlay] {
        machine.step(stage).await;
    }
    assert_eq!(machine.token, None, "a release is no approval");
}

#[tokio::test]
async fn repeated_reprovisioning_and_slow_boot_are_no_boot_loop() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    for _ in 0..8 {
        machine.boot(Stage::Online).await;
        rig.pass(Duration::from_secs(5)).await;
        machine.power_off().await;
    }
    let mut slow = Machine::new(&rig, 2);
    for stage in Stage::ALL {
        slow.step(stage).await;
        rig.pass(Duration::from_secs(110)).await;
    }
    for kind in ["boot_loop", "boot_stalled"] {
        assert!(rig.events(kind).is_empty(), "{:?}", rig.events(kind));
    }
}

#[tokio::test]
async fn boot_loop_without_script_request_is_reported_by_mac() {
    let mut world = World::prepared("auto");
    let mac = {
        let rig = Rig::new(&world);
        let mut machine = Machine::new(&rig, 1);
        for _ in 0..4 {
            machine.boot(Stage::Loader).await;
            rig.pass(Duration::from_secs(60)).await;
        }
        rig.pass(Duration::from_secs(60)).await;
        let loops = rig.events("boot_loop");
        assert_eq!(loops.len(), 1, "{loops:?}");
        assert!(
            loops[0].node.is_none() && loops[0].detail.contains(&machine.mac.to_string()),
            "{loops:?}"
        );
        machine.mac.to_string()
    };
    world.start();
    let findings = doctor(&world);
    let found = finding(&findings, "boot loops");
    assert!(
        found["status"] == "warn" && found["found"].as_str().unwrap().contains(&mac),
        "{found}"
    );
}

#[test]
fn quarantined_machine_waits_in_ipxe_and_boots_after_cli_release() {
    let mut world = World::prepared("auto");
    {
        let rig = Rig::new(&world);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for _ in 0..3 {
                Machine::new(&rig, 1).boot(Stage::Kernel).await;
                rig.pass(Duration::from_secs(120)).await;
            }
        });
    }
    world.start();
    let machine = PxeNode::new(&world, 1);
    let refused = machine.power_on().unwrap();
    assert!(
        refused.overlay().is_none() && refused.0.contains("# refusal quarantined"),
        "{}",
        refused.0
    );
    let node = world.wait_for_phase("quarantined");
    let id = node["id"].as_str().unwrap();
    assert!(conditions(&world).contains(&"boot_loop".to_owned()), "{node}");
    assert_eq!(finding(&doctor(&world), "quarantine")["status"], "warn");
    let timeline = world.json(&["node", "timeline", id, "-o", "json"]);
    assert_eq!(timeline["boots"].as_array().map(Vec::len), Some(4), "{timeline}");
    assert_eq!(
        (&timeline["result"], &timeline["waits"][0]["code"]),
        (&"waiting".into(), &"quarantined".into())
    );
    let older = timeline["boots"][1]["session"].as_str().unwrap();
    let before = world.json(&["node", "timeline", id, "--session", older, "-o", "json"]);
    assert_eq!((&before["session"], &before["result"]), (&older.into(), &"stopped".into()));
    let shown = world.meshd(&["node", "timeline", id]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("quarantined") && shown.lines().all(|line| line.chars().count() <= 100),
        "{shown}"
    );
    let released = world.meshd(&["node", "release", id]);
    assert!(released.status.success(), "{released:?}");
    assert!(!world.meshd(&["node", "release", id]).status.success(), "it is not held any more");
    let overlay = machine.retry_from_ipxe();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    assert!(conditions(&world).is_empty());
}
