//! What each order does, and what is left of it after the next boot.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{World, single_orders::SingleOrders as _},
};
use meshd_central::{LinkError, OperateError};
use meshd_model::fleet::{DhcpClient, Phase, Stage, Verb};
use std::time::Duration;

#[tokio::test]
async fn removed_node_loses_credentials_and_is_rediscovered_on_boot() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot_approved(Stage::Online).await;
    let id = machine.id();
    let serial = rig.node(id).certificates[0].clone();
    rig.central
        .nodes
        .assign_profile(id, "compute".parse().unwrap(), &ordered(Verb::AssignProfile))
        .await
        .unwrap();
    assert!(machine.heartbeat(0).await);

    rig.central.nodes.remove(id, &ordered(Verb::Remove)).await.unwrap();
    assert!(!machine.heartbeat(0).await, "nothing that it says counts");
    assert!(rig.central.enrolment.check_certificate(id, &serial).is_err());
    assert_eq!(rig.central.links.link_state(id).since, None);
    let (leases, owner) = rig
        .central
        .store()
        .read(|model| (model.leases().count(), model.node_of_mac(machine.mac).is_some()));
    assert_eq!((leases, owner), (0, false), "its address and its network card are nobody's");
    let gone = rig.node(id);
    assert_eq!((gone.phase, gone.profile, gone.boot), (Phase::Removed, None, None));
    assert!(matches!(
        rig.central.nodes.remove(id, &ordered(Verb::Remove)).await,
        Err(OperateError::Unlawful(_))
    ));
    assert!(
        rig.central.nodes.approve(id, &ordered(Verb::Approve)).await.is_err(),
        "it has to boot first"
    );
    rig.pass(Duration::from_secs(600)).await;
    assert_eq!(rig.node(id).phase, Phase::Removed, "it is not missed");

    machine.boot(Stage::Overlay).await;
    assert_eq!((machine.id(), rig.node(id).phase), (id, Phase::Discovered));
    assert_eq!(machine.token, None, "unknown as on its first day");
    let discovered: Vec<_> = rig.events("discovered");
    assert_eq!(discovered.len(), 2);
    let removed = rig
        .events("phase")
        .into_iter()
        .find(|event| event.detail.ends_with("removed"))
        .expect("an event");
    assert_eq!(removed.by.map(|by| by.verb), Some(Verb::Remove), "with who said so");
    rig.central.nodes.approve(id, &ordered(Verb::Approve)).await.unwrap();
    assert_eq!(rig.node(id).phase, Phase::Approved);
}

#[tokio::test]
async fn drained_node_finishes_work_and_stays_out_of_service_until_resumed() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let phase = || rig.node(id).phase;
    assert!(machine.heartbeat(2).await);
    rig.central.nodes.drain(id, &ordered(Verb::Drain)).await.unwrap();
    assert_eq!(phase(), Phase::Draining);
    assert!(machine.heartbeat(1).await);
    assert_eq!(phase(), Phase::Draining, "something runs");
    machine.power_off().await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(phase(), Phase::Offline);
    machine.boot(Stage::Online).await;
    assert_eq!(phase(), Phase::Draining, "the order outlives a power cycle");
    assert!(machine.heartbeat(0).await);
    assert_eq!(phase(), Phase::Maintenance);
    machine.power_off().await;
    machine.boot(Stage::Online).await;
    assert_eq!(phase(), Phase::Maintenance, "an operator's word outlives what the node does");
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    assert_eq!(phase(), Phase::Online, "its checks passed in this boot");
    rig.central.nodes.drain(id, &ordered(Verb::Drain)).await.unwrap();
    assert_eq!(phase(), Phase::Draining, "it has not said yet that nothing runs");
    rig.central.nodes.maintain(id, &ordered(Verb::Maintenance)).await.unwrap();
    machine.power_off().await;
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    assert_eq!(phase(), Phase::Offline, "it is not there");
    machine.boot(Stage::Online).await;
    assert_eq!(phase(), Phase::Online);
}

#[tokio::test]
async fn quarantined_node_loses_link_and_boots_after_release() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let mut by = ordered(Verb::Quarantine);
    by.reason = Some("it scans its neighbours".to_owned());
    rig.central.nodes.quarantine(id, &by).await.unwrap();
    assert!(!machine.heartbeat(0).await);
    assert!(rig.node(id).certificates.is_empty());
    machine.boot(Stage::Script).await;
    assert!(machine.script.contains("it scans its neighbours"), "{}", machine.script);
    assert_eq!(rig.node(id).phase, Phase::Quarantined, "no boot lets it go");
    rig.central.nodes.release(id, &ordered(Verb::Release)).await.unwrap();
    machine.dhcp(DhcpClient::Ipxe).await;
    for stage in Stage::ALL.into_iter().filter(|stage| *stage >= Stage::Script) {
        machine.step(stage).await;
    }
    assert_eq!(rig.node(id).phase, Phase::Online);
}

#[tokio::test]
async fn rejected_machine_is_refused_until_approved() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    let id = machine.id();
    rig.central.nodes.reject(id, &ordered(Verb::Reject)).await.unwrap();
    machine.boot(Stage::Script).await;
    assert!(machine.script.contains("# refusal rejected"), "{}", machine.script);
    machine.boot_approved(Stage::Script).await;
    machine.boot(Stage::Online).await;
    assert_eq!(rig.node(id).phase, Phase::Online);
    let refused = rig.central.nodes.reject(id, &ordered(Verb::Reject)).await;
    assert!(
        matches!(refused, Err(OperateError::Unlawful(_))),
        "one that works is removed or held: {refused:?}"
    );
}

#[tokio::test]
async fn replacement_hardware_takes_over_profile_and_reservation() {
    let world = World::prepared("approve");
    let old_id = "uuid:4c010203-0405-0607-0809-0a0b0c0d0e01"
        .parse::<meshd_types::Basis>()
        .unwrap()
        .node_id();
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    let more = format!(
        "[[reservation]]\nnode = \"{old_id}\"\naddress = \"10.77.0.50\"\n[groups.gpu]\nnodes = [\"{old_id}\"]\nvars = {{ slots = 8 }}\n"
    );
    std::fs::write(world.path("site.toml"), site + more.as_str()).unwrap();
    let rig = Rig::new(&world);
    let mut old = Machine::new(&rig, 1);
    let mut new = Machine::new(&rig, 2);
    old.answers = true;
    old.boot_approved(Stage::Online).await;
    assert_eq!(old.id(), old_id);
    rig.central
        .nodes
        .assign_profile(old_id, "compute".parse().unwrap(), &ordered(Verb::AssignProfile))
        .await
        .unwrap();
    new.boot(Stage::Script).await;
    let id = new.id();
    let replace = || async { rig.central.nodes.replace(old_id, id, &ordered(Verb::Replace)).await };
    assert!(matches!(replace().await, Err(OperateError::Link(LinkError::StillLinked { .. }))));
    assert_eq!(rig.node(id).phase, Phase::Discovered, "no changes");
    old.power_off().await;
    let node = replace().await.unwrap();
    assert_eq!((node.id, node.phase), (id, Phase::Approved));
    assert_eq!(node.profile.as_ref().map(|name| name.as_str()), Some("compute"));
    assert_eq!(rig.node(old_id).phase, Phase::Removed);
    assert_eq!(
        rig.central.boot.node_of_mac(new.mac),
        Some(old_id),
        "DHCP gives it the address that is reserved"
    );
    new.boot(Stage::Online).await;
    assert_eq!(rig.node(id).phase, Phase::Online);
    assert_eq!(replace().await.unwrap().profile, node.profile, "said again, it takes nothing away");
    let same = rig.central.nodes.replace(id, id, &ordered(Verb::Replace)).await;
    assert!(matches!(same, Err(OperateError::SameNode { .. })));

    old.boot(Stage::Script).await;
    assert_eq!(rig.node(old_id).phase, Phase::Discovered, "the old hardware is a stranger");
    assert_eq!(rig.central.boot.node_of_mac(old.mac), Some(old_id));
}
