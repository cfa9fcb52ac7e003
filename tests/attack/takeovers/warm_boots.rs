//! A warm boot in the hands of others: a stolen link key, another node, a revoked one, a task of the
//! node that asks for the script of its session.

use crate::{
    attack::boot_lan::STRANGER_MAC,
    boot::sessions::rig::Rig,
    nodes::lifecycle::warm_boot::{WarmNode, allow_warm_boots},
    world::World,
};
use meshd_model::fleet::{ConditionKind, Stage, Verb};

#[tokio::test]
async fn node_without_an_order_gets_no_warm_boot() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    assert!(node.plan().await.is_err(), "nobody ordered it");
    node.order().await;
    assert!(node.plan().await.is_ok());
}

#[tokio::test]
async fn link_key_at_another_nic_gets_no_warm_boot() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    node.order().await;
    let session = node.planned_session().await;
    rig.wire.put(node.machine.address, STRANGER_MAC);
    assert!(node.plan().await.is_err());
    assert!(node.overlay(session).await.is_err());
    assert!(node.report(session, None).await.is_err());
    let alarm = rig.condition(node.machine.id(), ConditionKind::BootImpersonated);
    assert!(alarm.is_some_and(|detail| detail.contains(&STRANGER_MAC.to_string())));
}

#[tokio::test]
async fn another_or_revoked_node_gets_nothing_of_a_warm_boot() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    let other = WarmNode::online(&rig, 2).await;
    node.order().await;
    other.order().await;
    let session = node.planned_session().await;
    assert!(other.overlay(session).await.is_err(), "the session of another node");
    assert!(other.report(session, None).await.is_err());
    let audit = crate::boot::sessions::rig::ordered(Verb::CertificateRevoke);
    rig.central.nodes.revoke(node.machine.id(), &audit).await.expect("revoked");
    assert!(node.plan().await.is_err());
    assert!(node.overlay(session).await.is_err());
    assert!(node.report(session, None).await.is_err());
}

#[tokio::test]
async fn overlay_of_a_warm_boot_is_given_once() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    node.order().await;
    let session = node.planned_session().await;
    let first = node.open_overlay(session).await;
    assert!(first.is_ok(), "the first time");
    assert!(node.open_overlay(session).await.is_err(), "while the first is sent");
    drop(first);
    assert!(node.overlay(session).await.is_err(), "the second time");
    assert_eq!(node.planned_session().await, session, "the plan may be repeated");
    assert!(node.overlay(session).await.is_err(), "after another plan");
}

#[tokio::test]
async fn program_of_a_node_gets_no_script_in_the_session_of_a_warm_boot() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    node.order().await;
    node.planned_session().await;
    // The order announces the end of the boot, and the agent has stopped.
    let script = node.machine.script_for(node.machine.address).await;
    assert!(script.contains("# refusal no_session"), "{script}");
    let reached = |stage| {
        let id = node.machine.session();
        rig.central.store().read(|model| model.session(id).and_then(|boot| boot.reached(stage)))
    };
    assert!(reached(Stage::Overlay).is_none());
}
