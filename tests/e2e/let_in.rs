//! Policy approve, everything by TFTP, and a central node that is killed in between: the node waits for an operator without any
//! secret, and goes on at once when it is let in.

use crate::racks::{BOOT, OrEnd, SOON, count, events, kernel_starts, stages, until_phase, until_stage, up};
use meshd::lab::{Power, Rack, Wait};

const NODE: u8 = 1;

#[test]
fn a_new_node_by_tftp_waits_without_a_token_through_kills_of_meshd_and_is_let_in_without_a_reboot() {
    let mut test = up(|mut options, _| {
        (options.nodes, options.powered) = (1, false);
        options.set("enroll.policy", "approve").set("boot.kernel_transport", "tftp")
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();

    until_stage(rack, NODE, "initramfs");
    rack.kill_central().or_end();
    assert!(
        !stages_now(rack).contains("Linux version"),
        "it was killed before the kernel ran: packages were on their way"
    );
    rack.start_central().or_end();

    let node = pending(rack);
    assert_eq!(node["phase"], "discovered");
    let session = node["boot"]["session"].clone();
    for never in ["enrolled", "link", "online"] {
        assert!(!stages(&node).contains(&never), "nobody let it in: {node}");
    }
    assert_eq!(count(rack, NODE, "certificate_issued"), 0);

    rack.kill_central().or_end();
    rack.start_central().or_end();
    let id = rack.id(NODE).to_string();
    rack.tell(&["node", "approve", &id]).or_end();
    let node = until_phase(rack, NODE, "online", SOON * 2);
    assert_eq!(node["boot"]["session"], session, "through no firmware");
    assert_eq!(kernel_starts(rack, NODE), 1, "without a reboot");
    assert_eq!(count(rack, NODE, "certificate_issued"), 1);
    let by_operator = |event: &serde_json::Value| event["to"] == "approved" && event["actor"] == "operator";
    assert!(events(rack).iter().any(by_operator), "the approval is on record");
}

fn stages_now(rack: &Rack) -> String {
    rack.serial(NODE)
}

/// Waits until the agent runs and tells of itself on a pending connection.
fn pending(rack: &Rack) -> serde_json::Value {
    let id = rack.id(NODE).to_string();
    rack.wait(BOOT, "the pending connection of node1", |rack| {
        let Ok(shown) = rack.ask(&["node", "show", &id]) else {
            return Ok(Wait::NotYet("meshd does not know it".into()));
        };
        let tells = !shown["facts"].is_null();
        Ok(Wait::some(tells.then_some(shown), "it has told nothing of itself"))
    })
    .or_end()
}
