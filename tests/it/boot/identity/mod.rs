//! Who is who: two machines that show the same, one machine that shows something else than before,
//! cards that move.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{World, node::PxeNode, single_orders::SingleOrders as _},
};
use meshd_model::fleet::{ConditionKind, Phase, Stage, Verb};
use meshd_types::MacAddr;
use std::time::Duration;

/// A second machine with the UUID of `of`.
fn duplicate_of<'a>(rig: &'a Rig, number: u8, of: &Machine<'_>) -> Machine<'a> {
    Machine { uuid: of.uuid, ..Machine::new(rig, number) }
}

#[tokio::test]
async fn duplicate_uuid_is_refused_and_shown_on_the_first_node() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = Machine::new(&rig, 1);
    first.answers = true;
    first.boot(Stage::Online).await;
    let id = first.id();
    let before = rig.node(id);
    let mut second = duplicate_of(&rig, 2, &first);
    second.boot(Stage::Script).await;
    assert!(second.script.contains("# refusal id_collision"), "{}", second.script);
    assert!(
        second.script.contains("SN-1") && second.script.contains("SN-2"),
        "both sides: {}",
        second.script
    );
    for _ in 0..20 {
        rig.clock.turn(Duration::from_secs(30));
        assert!(first.heartbeat(0).await);
        second.step(Stage::IpxeDhcp).await;
        second.step(Stage::Script).await;
    }
    let node = rig.node(id);
    assert_eq!(
        (node.phase, node.mac, &node.certificates),
        (Phase::Online, first.mac, &before.certificates)
    );
    assert_eq!(node.fingerprint, before.fingerprint, "nothing of the second one is in it");
    let [rival] = node.conflicting_machines.as_slice() else { panic!("one rival: {node:?}") };
    assert_eq!((rival.mac, rival.fingerprint.serial.as_str()), (second.mac, "SN-2"));
    assert!(rival.last > rival.since, "it asks all the while");
    let weak =
        rig.condition(id, ConditionKind::WeakIdentity).expect("the UUID is known to be shared");
    assert!(weak.contains("deny_uuids") && weak.contains("SN-2"), "{weak}");
    assert_eq!(
        (rig.events("id_collision").len(), rig.events("weak_identity").len()),
        (1, 1),
        "told once"
    );

    rig.central.nodes.approve(id, &ordered(Verb::Approve)).await.unwrap();
    let node = rig.node(id);
    assert!(
        node.conflicting_machines.is_empty()
            && rig.condition(id, ConditionKind::IdCollision).is_none(),
        "an operator has seen it"
    );
}

#[tokio::test]
async fn denied_uuid_gives_both_machines_new_ids_and_keeps_node_state() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut first = Machine::new(&rig, 1);
    first.boot_approved(Stage::Online).await;
    let old = first.id();
    rig.central
        .nodes
        .assign_profile(old, "compute".parse().unwrap(), &ordered(Verb::AssignProfile))
        .await
        .unwrap();
    let mut second = duplicate_of(&rig, 2, &first);
    second.boot(Stage::Script).await;
    assert!(second.script.contains("id_collision"), "{}", second.script);

    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    let list = format!("[identity]\ndeny_uuids = [\"{}\"]\n", first.uuid);
    std::fs::write(world.path("site.toml"), site + list.as_str()).unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    assert_eq!(rig.node(old).phase, Phase::Online, "what runs goes on");
    second.step(Stage::IpxeDhcp).await;
    second.step(Stage::Script).await;
    assert!(second.script.contains("/overlay/"), "it goes on by itself: {}", second.script);
    assert_ne!(second.id(), old);
    assert_eq!(rig.node(second.id()).phase, Phase::Discovered, "and is a stranger like any other");
    assert!(rig.node(old).conflicting_machines.is_empty());

    first.power_off().await;
    first.boot(Stage::Online).await;
    let new = first.id();
    let node = rig.node(first.id());
    assert_ne!(new, old);
    assert_eq!(
        (node.phase, node.basis.to_string()),
        (Phase::Online, "serial:qemu|world|sn-1".to_owned())
    );
    assert_eq!(node.profile.as_ref().map(|name| name.as_str()), Some("compute"));
    assert_eq!((node.former.as_slice(), rig.node(old).phase), ([old].as_slice(), Phase::Removed));
    assert_eq!(rig.events("replaced").len(), 1);
    assert_ne!(second.id(), new);
}

#[tokio::test]
async fn quarantine_during_id_change_applies_to_the_new_id() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let old = machine.id();
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    let list = format!("[identity]\ndeny_uuids = [\"{}\"]\n", machine.uuid);
    std::fs::write(world.path("site.toml"), site + list.as_str()).unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    machine.step(Stage::IpxeDhcp).await;
    // Its script, which is asked for first, waits for the old link to answer.
    let by = ordered(Verb::Quarantine);
    let ((), held) = tokio::join!(machine.ask_script(), rig.central.nodes.quarantine(old, &by));
    held.unwrap();
    assert_ne!(machine.id(), old);
    assert_eq!(rig.node(machine.id()).phase, Phase::Quarantined, "{}", machine.script);
    assert!(machine.script.contains("# refusal quarantined"), "{}", machine.script);
}

#[tokio::test]
async fn new_nic_keeps_node_id_and_profile_and_old_nic_as_alias() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.facts.system.board_serial = "B-1".to_owned();
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let old = machine.mac;
    rig.central
        .nodes
        .assign_profile(id, "compute".parse().unwrap(), &ordered(Verb::AssignProfile))
        .await
        .unwrap();
    machine.power_off().await;
    machine.mac = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
    machine.boot(Stage::Script).await;
    assert!(
        machine.script.contains("id_collision"),
        "it was there a moment ago: {}",
        machine.script
    );
    rig.pass(Duration::from_secs(30)).await;
    machine.step(Stage::IpxeDhcp).await;
    for stage in Stage::ALL.into_iter().filter(|stage| *stage >= Stage::Script) {
        machine.step(stage).await;
    }
    let node = rig.node(id);
    assert_eq!((machine.id(), node.phase), (id, Phase::Online));
    assert_eq!(node.profile.as_ref().map(|name| name.as_str()), Some("compute"));
    assert_eq!(node.fingerprint.macs.len(), 2);
    assert_eq!(rig.central.boot.node_of_mac(old), Some(id), "the old card is still its own");
    assert!(rig.condition(id, ConditionKind::HardwareChanged).is_some());
    assert_eq!(
        (rig.condition(id, ConditionKind::IdCollision), node.conflicting_machines.len()),
        (None, 0),
        "that is resolved"
    );
    assert_eq!(node.fingerprint.board_serial, "B-1");

    machine.power_off().await;
    machine.facts.system.board_serial = "B-2".to_owned();
    machine.boot(Stage::Online).await;
    assert!(
        rig.events("hardware_changed")
            .iter()
            .any(|event| event.detail.contains("B-1") && event.detail.contains("B-2"))
    );
    rig.central.nodes.approve(id, &ordered(Verb::Approve)).await.unwrap();
    assert_eq!(rig.condition(id, ConditionKind::HardwareChanged), None);
}

#[tokio::test]
async fn booting_node_is_not_taken_over_before_its_script_is_sent() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    machine.power_off().await;
    rig.pass(Duration::from_secs(3600)).await;
    machine.step(Stage::Dhcp).await;
    let mut other =
        Machine { uuid: machine.uuid, serial: machine.serial.clone(), ..Machine::new(&rig, 2) };
    other.boot(Stage::Script).await;
    assert!(
        other.script.contains("id_collision"),
        "the first one has begun to boot: {}",
        other.script
    );
    machine.boot(Stage::Online).await;
    assert_eq!((rig.node(id).phase, rig.node(id).mac), (Phase::Online, machine.mac));
}

#[tokio::test]
async fn concurrent_machines_with_one_uuid_yield_one_boot() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machines: Vec<_> = (1..9)
        .map(|number| {
            let first = Machine::new(&rig, 1);
            Machine { uuid: first.uuid, serial: first.serial, ..Machine::new(&rig, number) }
        })
        .collect();
    for machine in &mut machines {
        machine.step(Stage::IpxeDhcp).await;
    }
    futures_util::future::join_all(machines.iter_mut().map(Machine::ask_script)).await;
    let boots = machines.iter().filter(|machine| machine.script.contains("/overlay/")).count();
    let collides =
        machines.iter().filter(|machine| machine.script.contains("id_collision")).count();
    assert_eq!((boots, collides), (1, 7));
    let node = rig.central.store().read(|model| model.nodes().next().cloned()).expect("one");
    assert_eq!((node.fingerprint.macs.len(), node.conflicting_machines.len()), (1, 7), "{node:?}");
}

#[tokio::test]
async fn node_in_maintenance_is_not_taken_over_during_short_link_loss() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    rig.central.nodes.maintain(id, &ordered(Verb::Maintenance)).await.unwrap();
    machine.power_off().await;
    let mut other =
        Machine { uuid: machine.uuid, serial: machine.serial.clone(), ..Machine::new(&rig, 2) };
    other.boot(Stage::Script).await;
    assert!(other.script.contains("id_collision"), "it was there a moment ago: {}", other.script);
    assert!(!rig.node(id).fingerprint.macs.contains(&other.mac));
}

#[tokio::test]
async fn nic_moved_to_another_machine_belongs_to_that_node_only() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut one = Machine::new(&rig, 1);
    let mut two = Machine::new(&rig, 2);
    two.answers = true;
    one.boot(Stage::Online).await;
    two.boot(Stage::Online).await;
    let first = one.id();
    let second = two.id();
    one.power_off().await;
    one.mac = two.mac;
    one.address = two.address;
    one.boot(Stage::Script).await;
    assert!(one.script.contains("id_collision"), "two machines with one card: {}", one.script);
    assert_eq!(rig.node(second).phase, Phase::Online);
    two.power_off().await;
    rig.pass(Duration::from_secs(30)).await;
    one.boot(Stage::Online).await;
    assert_eq!(rig.node(first).phase, Phase::Online);
    assert_eq!(rig.central.boot.node_of_mac(two.mac), Some(first));
    assert!(!rig.node(second).fingerprint.macs.contains(&two.mac), "never of two nodes");
    assert!(rig.condition(second, ConditionKind::HardwareChanged).is_some());
}

#[tokio::test]
async fn power_cycled_node_boots_and_node_with_live_link_is_refused() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    assert!(
        rig.central.links.link_state(id).since.is_some(),
        "the link looks alive: nobody has said goodbye"
    );
    machine.boot(Stage::Script).await;
    assert!(machine.script.contains("/overlay/"), "{}", machine.script);
    machine.answers = true;
    machine.boot(Stage::Online).await;
    machine.boot(Stage::Script).await;
    assert!(
        machine.script.contains("# refusal no_session"),
        "somebody else speaks for it: {}",
        machine.script
    );
    assert_eq!(rig.node(id).phase, Phase::Online);
}

/// Without a serial number, as many boards come.
fn no_serial<'a>(rig: &'a Rig, number: u8) -> Machine<'a> {
    Machine { serial: String::new(), ..Machine::new(rig, number) }
}

/// The machine is off for long, and comes back with another network card.
async fn swap_nic(rig: &Rig, machine: &mut Machine<'_>) {
    machine.power_off().await;
    rig.pass(Duration::from_secs(120)).await;
    machine.mac = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
    machine.boot(Stage::Script).await;
}

#[tokio::test]
async fn id5_board_serial_from_ipxe_keeps_a_node_with_a_new_nic() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine { board: "B-1".to_owned(), ..no_serial(&rig, 1) };
    machine.boot(Stage::Online).await;
    let id = machine.id();
    assert_eq!(rig.node(id).fingerprint.board_serial, "B-1", "iPXE told it");
    swap_nic(&rig, &mut machine).await;
    assert!(machine.script.contains("/overlay/"), "{}", machine.script);
    assert_eq!(machine.id(), id);
    assert!(rig.condition(id, ConditionKind::HardwareChanged).is_some());
}

#[tokio::test]
async fn id5_accepted_nic_boots_the_node_that_nothing_else_identifies() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = no_serial(&rig, 1);
    machine.answers = true;
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let new = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
    let accept = async |mac| rig.central.nodes.accept_nic(id, mac, &ordered(Verb::AcceptNic)).await;
    let refused = accept(new).await.expect_err("the node runs, so this is another machine");
    assert!(refused.to_string().contains("still answers"), "{refused}");
    swap_nic(&rig, &mut machine).await;
    assert!(machine.script.contains("# refusal id_collision"), "{}", machine.script);
    assert!(
        machine.script.contains("accept-nic"),
        "the refusal names the way out: {}",
        machine.script
    );
    let mut other = Machine::new(&rig, 2);
    other.boot(Stage::Script).await;
    let refused = accept(other.mac).await.expect_err("the card of another node");
    assert!(refused.to_string().contains(&other.id().to_string()), "{refused}");
    accept(new).await.unwrap();
    assert_eq!(rig.condition(id, ConditionKind::IdCollision), None);
    machine.step(Stage::IpxeDhcp).await;
    machine.step(Stage::Script).await;
    assert!(machine.script.contains("/overlay/"), "{}", machine.script);
    let node = rig.node(id);
    assert_eq!(
        (machine.id(), node.mac, node.fingerprint.macs.len(), node.conflicting_machines.len()),
        (id, new, 2, 0)
    );
    let events = rig.events("nic_accepted");
    assert_eq!(events[0].by.as_ref().map(|by| by.verb), Some(Verb::AcceptNic));
}

#[test]
fn id5_accept_nic_command_lets_the_machine_boot() {
    let world = World::new("auto");
    let mut machine = PxeNode::new(&world, 1);
    machine.serial.clear();
    machine.boot();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let wrong = world.meshd(&["node", "accept-nic", &id, "ff:ff:ff:ff:ff:ff"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", String::from_utf8_lossy(&wrong.stderr));
    let usage = world.meshd(&["node", "accept-nic", &id, "junk"]);
    assert_eq!(usage.status.code(), Some(2));
    machine.mac = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
    let accepted =
        world.meshd(&["node", "accept-nic", &id, &machine.mac.to_string(), "--reason", "new card"]);
    assert!(accepted.status.success(), "{}", String::from_utf8_lossy(&accepted.stderr));
    machine.address.set(None);
    let script = machine.power_on().unwrap();
    assert!(
        script.0.contains(&format!("# node {id}")) && script.overlay().is_some(),
        "{}",
        script.0
    );
    let audit = world.json(&["audit", "-o", "json"]).to_string();
    assert!(audit.contains("accept-nic") && audit.contains("new card"), "{audit}");
}
