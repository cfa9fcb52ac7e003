//! Machines that need no operator: rules of the site, also for those that wait already.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{World, single_orders::SingleOrders as _},
};
use meshd_model::fleet::{DhcpClient, Phase, Principal, RelayPort, Stage, Verb};

fn add(world: &World, text: &str) {
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    std::fs::write(world.path("site.toml"), site + text).unwrap();
}

#[tokio::test]
async fn matching_rule_approves_machine_and_others_wait() {
    let world = World::prepared("approve");
    add(
        &world,
        "[[enroll.rule]]\nname = \"bought\"\nserials = [\"sn-1\"]\nsegments = [\"br0\"]\nprofile = \"compute\"\n",
    );
    let rig = Rig::new(&world);
    let mut fits = Machine::new(&rig, 1);
    let mut other = Machine::new(&rig, 2);
    fits.boot(Stage::Online).await;
    let node = rig.node(fits.id());
    assert_eq!(node.phase, Phase::Online);
    assert_eq!(node.profile.as_ref().map(|name| name.as_str()), Some("compute"));
    let by = rig
        .events("phase")
        .into_iter()
        .find(|event| event.detail.ends_with("approved"))
        .and_then(|event| event.by);
    assert_eq!(
        by.map(|by| (by.principal, by.verb)),
        Some((Principal::Rule("bought".parse().unwrap()), Verb::Approve))
    );

    other.boot(Stage::Overlay).await;
    assert_eq!((rig.node(other.id()).phase, &other.token), (Phase::Discovered, &None));
    add(&world, "[[enroll.rule]]\nname = \"more\"\nmac_prefixes = [\"52:54:00\"]\n");
    let reloaded = rig.central.generations.reload(&ordered(Verb::Reload)).await;
    assert!(reloaded.changed, "{reloaded:?}");
    assert_eq!(rig.node(other.id()).phase, Phase::Approved, "it need not boot again");
    assert_eq!(rig.node(other.id()).profile, None, "the rule names none");
}

#[tokio::test]
async fn rule_does_not_approve_rejected_or_quarantined_machine() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut turned_away = Machine::new(&rig, 1);
    let mut quarantined = Machine::new(&rig, 2);
    turned_away.boot(Stage::Script).await;
    quarantined.boot(Stage::Script).await;
    rig.central.nodes.reject(turned_away.id(), &ordered(Verb::Reject)).await.unwrap();
    rig.central.nodes.quarantine(quarantined.id(), &ordered(Verb::Quarantine)).await.unwrap();
    add(&world, "[[enroll.rule]]\nname = \"all\"\nmac_prefixes = [\"52\"]\n");
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    for machine in [&mut turned_away, &mut quarantined] {
        machine.boot(Stage::Script).await;
        assert!(!machine.script.contains("/overlay/"), "{}", machine.script);
    }
    assert_eq!(rig.node(turned_away.id()).phase, Phase::Rejected);
    rig.central.nodes.remove(turned_away.id(), &ordered(Verb::Remove)).await.unwrap();
    turned_away.boot(Stage::Online).await;
    assert_eq!(
        rig.node(turned_away.id()).phase,
        Phase::Online,
        "removed is forgotten: the rule counts again"
    );
}

#[tokio::test]
async fn rule_matches_the_switch_port_that_a_relay_reports() {
    let world = World::prepared("approve");
    add(
        &world,
        "[[segment]]\nrelay = \"10.88.0.1\"\nrelay_mac = [\"52:54:00:12:34:56\"]\nrange = \"10.88.0.100-10.88.0.110\"\nrouter = \"10.88.0.1\"\n\
         [[enroll.rule]]\nname = \"rack-a\"\ncircuit_ids = [\"eth1/*\"]\nlabels = [\"rack=a\"]\n",
    );
    let rig = Rig::new(&world);
    let port = |text: &str, relay| RelayPort {
        relay,
        circuit_id: Some(meshd_types::hex(text.as_bytes())),
        remote_id: None,
    };
    let relay = Some([10, 88, 0, 1].into());
    for (number, port, is_approved) in [
        (1, Some(port("eth1/7", relay)), true),
        (2, Some(port("eth2/7", relay)), false),
        // Without a relay, the machine may have written the option.
        (3, Some(port("eth1/7", None)), false),
        (4, None, false),
    ] {
        let mut machine = Machine::new(&rig, number);
        machine.relay_port = port;
        machine.boot(Stage::Script).await;
        let node = rig.node(machine.id());
        assert_eq!(node.phase != Phase::Discovered, is_approved, "{number}: {:?}", node.phase);
        assert_eq!(node.labels.len(), usize::from(is_approved), "{number}");
    }
    // A boot that goes on without the relay has no port.
    let mut local = Machine::new(&rig, 5);
    local.relay_port = Some(port("eth1/7", relay));
    local.dhcp(DhcpClient::Firmware).await;
    local.relay_port = None;
    local.dhcp(DhcpClient::Ipxe).await;
    local.ask_script().await;
    assert_eq!(rig.node(local.id()).phase, Phase::Discovered);
}

#[tokio::test]
async fn rule_gives_labels_and_numbered_names_that_no_other_node_has() {
    let world = World::prepared("approve");
    let mut rig = Rig::new(&world);
    let (one, two) = {
        let mut one = Machine::new(&rig, 1);
        let mut two = Machine::new(&rig, 2);
        one.boot(Stage::Script).await;
        two.boot(Stage::Script).await;
        (one.id(), two.id())
    };
    let reserved = "[[reservation]]\nmac = \"02:09:09:00:00:02\"\nname = \"gpua-004\"\n";
    let rule = "[[enroll.rule]]\nname = \"gpu\"\nmac_prefixes = [\"52:54:00\"]\nlabels = [\"rack=a\"]\nnode_name = \"gpu{rack}-{n:03}\"\n";
    add(&world, &format!("{reserved}{rule}"));
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    // One transaction approves both.
    let mut names = [rig.node(one).name, rig.node(two).name];
    names.sort();
    assert_eq!(names, ["gpua-001", "gpua-002"]);
    assert_eq!(rig.node(one).labels.len(), 1);
    let rows = [meshd_model::fleet::MachineRow {
        mac: "02:09:09:00:00:01".to_owned(),
        name: "gpua-003".to_owned(),
        ..Default::default()
    }];
    let options = Default::default();
    let import = ordered(Verb::MachineImport);
    rig.central.nodes.import_machines(&rows, options, &import).await.unwrap();
    rig.central.nodes.rename(one, "login1", &ordered(Verb::Rename)).await.unwrap();
    let first = rig.node(one).name;
    let second = rig.node(two).name;
    rig = rig.restarted(&world);
    assert_eq!((rig.node(one).name, rig.node(two).name), (first, second.clone()));
    let free = if second == "gpua-001" { "gpua-002" } else { "gpua-001" };
    for (number, name) in [(3, free), (4, "gpua-005")] {
        let mut machine = Machine::new(&rig, number);
        machine.boot(Stage::Script).await;
        assert_eq!(rig.node(machine.id()).name, name, "others are gpua-003 and gpua-004");
        machine.boot(Stage::Script).await;
        assert_eq!(rig.node(machine.id()).name, name, "the next boot keeps it");
    }
}
