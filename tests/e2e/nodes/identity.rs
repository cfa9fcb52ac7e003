//! A machine and its twin, a power cycle, another network card, the end of a node and its return:
//! two machines, four boots.

use crate::racks::{
    BOOT, OrEnd, SOON, STAGE, TestRack, events, kernel_starts, until_phase, up_one_by_one,
};
use meshd_lab::{Identity, Power, Rack, Wait};
use meshd_types::MacAddr;
use serde_json::Value;

const NODE: u8 = 1;
const TWIN: u8 = 2;

fn shown(rack: &Rack, id: &str) -> Value {
    rack.query(&["node", "show", id]).or_end()
}

/// Waits until something of a node is as wanted, and gives all that is known of it then.
fn until(rack: &Rack, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    rack.wait(BOOT, what, |rack| {
        let Ok(shown) = rack.query(&["node", "show", id]) else {
            return Ok(Wait::NotYet("it is not known".into()));
        };
        let seen = format!("phase {}, {}", shown["phase"], shown["conditions"]);
        Ok(Wait::some(wanted(&shown).then_some(shown), &seen))
    })
    .or_end()
}

#[test]
fn node_keeps_identity_through_collision_power_cycle_and_new_nic() {
    let mut test: TestRack = up_one_by_one(|mut options, _| {
        (options.nodes, options.powered) = (2, false);
        options.set("enroll.policy", "approve")
    });
    let rack = &mut test.rack;
    let id = rack.id(NODE).to_string();
    rack.power(NODE, Power::On).or_end();
    until(rack, &id, "node1 to tell of itself", |shown| !shown["facts"].is_null());
    rack.run_cli(&["node", "approve", &id]).or_end();
    rack.run_cli(&["node", "assign-profile", &id, "compute"]).or_end();
    let first = until_phase(rack, NODE, "online", SOON * 2);

    the_twin_waits_in_ipxe(rack, &id);
    assert_eq!(kernel_starts(rack, NODE), 1, "the first one never noticed");

    // The plug is pulled: nobody says goodbye, and its link looks alive.
    let refusals = refused(rack, &id);
    rack.power(NODE, Power::Off).or_end();
    rack.power(NODE, Power::On).or_end();
    let again = |shown: &Value| {
        shown["phase"] == "online" && shown["boot"]["session"] != first["boot"]["session"]
    };
    let second = until(rack, &id, "node1 to be online after a power cycle", again);
    assert_eq!(refused(rack, &id), refusals, "it was not refused");
    assert_eq!(second["profile"], "compute");

    another_card_is_the_same_node(rack, &id, &second);
    the_node_is_removed_and_comes_back(rack, &id);
}

/// Another machine with node1's UUID: its script says why it does not boot.
fn the_twin_waits_in_ipxe(rack: &mut Rack, id: &str) {
    let own = Identity::at(TWIN);
    rack.set_identity(TWIN, Identity { uuid: rack.identity(NODE).uuid, ..own.clone() }).or_end();
    rack.power(TWIN, Power::On).or_end();
    rack.wait(STAGE, "the twin to be refused", |rack| {
        // A screen is 80 columns wide: words are broken where a line is full.
        let screen: String = rack.serial(TWIN).split_whitespace().collect();
        let other = rack.identity(NODE).serial;
        let expected = ["(id_collision)", own.serial.as_str(), other.as_str()];
        Ok(Wait::on(
            expected.iter().all(|word| screen.contains(word)),
            "its screen does not say why, with both sides",
        ))
    })
    .or_end();
    assert_eq!(kernel_starts(rack, TWIN), 0, "it waits in iPXE");
    let shown = shown(rack, id);
    assert_eq!(shown["phase"], "online");
    assert_eq!(
        shown["conflicting_machines"][0]["mac"],
        own.mac.to_string(),
        "both are shown: {shown}"
    );
    let collision =
        events(rack).into_iter().find(|event| event["kind"] == "id_collision").expect("an event");
    let detail = collision["detail"].as_str().unwrap_or_default().to_owned();
    assert!(
        detail.contains("LAB-0001") && detail.contains(&own.serial),
        "with both sides: {detail}"
    );
    rack.power(TWIN, Power::Off).or_end();
    rack.run_cli(&["node", "approve", id]).or_end();
    assert!(self::shown(rack, id)["conflicting_machines"].is_null(), "an operator has seen it");
}

/// The machine gets another network card while it is off.
fn another_card_is_the_same_node(rack: &mut Rack, id: &str, before: &Value) {
    rack.power(NODE, Power::Off).or_end();
    let card = MacAddr([0x52, 0x54, 0x00, 0x6d, 0x68, 0x77]);
    rack.set_identity(NODE, Identity { mac: card, ..rack.identity(NODE) }).or_end();
    rack.power(NODE, Power::On).or_end();
    let mac = card.to_string();
    let booted = |shown: &Value| shown["phase"] == "online" && shown["mac"] == mac.as_str();
    let swapped = until(rack, id, "node1 to be online with its new card", booted);
    for kept in ["id", "name", "profile"] {
        assert_eq!(swapped[kept], before[kept], "{kept}");
    }
    let conditions = swapped["conditions"].to_string();
    assert!(
        conditions.contains("hardware_changed") && !conditions.contains("id_collision"),
        "{conditions}"
    );
    assert_eq!(
        swapped["fingerprint"]["macs"].as_array().map(Vec::len),
        Some(2),
        "both are its cards"
    );
}

/// Cut off at once; a stranger when it boots; the same node when it is let in.
fn the_node_is_removed_and_comes_back(rack: &mut Rack, id: &str) {
    rack.run_cli(&["node", "remove", id, "--yes"]).or_end();
    // By the time the word comes back there is no link: no second passes.
    let gone = shown(rack, id);
    assert_eq!((&gone["phase"], &gone["link_since"]), (&"removed".into(), &Value::Null));
    assert!(rack.nodes().or_end().iter().all(|node| node["id"] != id), "it is listed no more");
    assert!(
        events(rack)
            .iter()
            .any(|event| event["kind"] == "credentials_revoked" && event["node"] == id)
    );

    rack.power(NODE, Power::Off).or_end();
    rack.power(NODE, Power::On).or_end();
    let back = until(rack, id, "node1 to wait for an operator", |shown| {
        shown["phase"] == "discovered" && !shown["facts"].is_null()
    });
    assert_eq!(back["profile"], "discovery", "what was said of it is forgotten");
    rack.run_cli(&["node", "approve", id]).or_end();
    let online = until_phase(rack, NODE, "online", SOON * 2);
    assert_eq!(online["id"], id, "with the same ID");
}

/// How often a machine was refused as this node.
fn refused(rack: &Rack, id: &str) -> usize {
    events(rack)
        .iter()
        .filter(|event| event["kind"] == "boot_refused" && event["node"] == id)
        .count()
}
