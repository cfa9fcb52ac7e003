//! Somebody has read a token: on the wire, in a ticket that was left lying about, or by guessing.

use super::client::{Attacker, Identity, STRANGER, enrolment, no_session, ticket};
use crate::world::{World, node::PxeNode};
use meshd_proto::{BootPart, PendingReply, Ticket};
use serde_json::json;

/// The overlay's token, as somebody reads it who sees the wire.
fn sniffed(overlay: &crate::world::node::Overlay) -> Ticket {
    let boot: BootPart = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    Ticket { config: serde_json::from_slice(&overlay["etc/meshd/agent.json"].1).unwrap(), boot }
}

#[test]
fn used_token_is_refused_and_event_names_both_addresses() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let stolen = sniffed(&overlay);
    let _agent = machine.start_agent(&overlay);
    let node = world.wait_for_phase("online");
    let attacker = Attacker::new(&world);
    let thief = Identity::new();
    let used = attacker.run(attacker.post(
        &thief,
        meshd_proto::ENROL_PATH,
        &enrolment(&stolen, &thief.csr()),
    ));
    let (status, body) = used.expect("an answer");
    assert_eq!(status, 401, "{body}");
    let mut invented = enrolment(&stolen, &thief.csr());
    invented["token"] = json!("0".repeat(64));
    let guessed =
        attacker.run(attacker.post(&thief, meshd_proto::ENROL_PATH, &invented)).expect("an answer");
    assert_eq!(guessed, (401, body), "a guess and a used one look the same");

    let shown = world.events("capability_replayed");
    let detail = shown[0]["detail"].as_str().unwrap();
    for side in [node["address"].as_str().unwrap(), &STRANGER.to_string()] {
        assert!(detail.contains(side), "{side}: {detail}");
    }
    let after = world.node();
    assert_eq!(after["phase"], "online", "it goes on");
    assert!(
        after["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["kind"] == "capability_replayed"),
        "{after}"
    );
}

#[test]
fn token_presented_for_another_node_is_refused_and_stays_unused() {
    let world = World::new("approve");
    let attacker = Attacker::new(&world);
    let ours = ticket(&world, 1);
    let other = ticket(&world, 2);
    let thief = Identity::new();
    let mut foreign = enrolment(&ours, &thief.csr());
    foreign["node"] = json!(other.boot.node);
    foreign["session"] = json!(other.boot.session);
    let refused =
        attacker.run(attacker.post(&thief, meshd_proto::ENROL_PATH, &foreign)).expect("an answer");
    assert_eq!(refused.0, 401, "{refused:?}");
    let shown = world.events("capability_replayed");
    let detail = shown[0]["detail"].as_str().unwrap();
    assert!(
        detail.contains(&ours.boot.node.to_string())
            && detail.contains(&other.boot.node.to_string()),
        "{detail}"
    );
    attacker.enrol(&ours);
}

#[test]
fn token_used_by_64_clients_at_once_issues_one_certificate() {
    let world = World::new("approve");
    let attacker = Attacker::new(&world);
    let ticket = ticket(&world, 1);
    let identities: Vec<Identity> = (0..64).map(|_| Identity::new()).collect();
    let requests =
        identities.iter().map(|one| (one, enrolment(&ticket, &one.csr()))).collect::<Vec<_>>();
    let answers = attacker.run(async {
        let all = requests
            .iter()
            .map(|(one, request)| attacker.post(one, meshd_proto::ENROL_PATH, request));
        futures_util::future::join_all(all).await
    });
    let statuses: Vec<u16> =
        answers.into_iter().map(|answer| answer.expect("an answer").0).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 63, "{statuses:?}");
    assert_eq!(world.events("certificate_issued").len(), 1);
}

#[test]
fn token_grants_only_enrolment_in_its_boot_session() {
    let world = World::new("approve");
    let attacker = Attacker::new(&world);
    let ticket = ticket(&world, 1);
    let nobody = Identity::new();
    assert_eq!(attacker.link_status(&nobody).0, 401);
    for path in ["/v1/tokens", "/v1/nodes", "/v1/ca", "/boot.ipxe", "/metrics"] {
        let answer = attacker.run(attacker.get(&nobody, path)).expect("an answer");
        assert_eq!(answer.0, 404, "{path} is of another plane: {answer:?}");
    }
    let mut other_boot = enrolment(&ticket, &nobody.csr());
    other_boot["session"] = json!(no_session());
    let refused = attacker
        .run(attacker.post(&nobody, meshd_proto::ENROL_PATH, &other_boot))
        .expect("an answer");
    assert_eq!(refused.0, 401, "a token is of one boot");
}

#[test]
fn ticket_token_is_stored_as_hash_and_void_after_revocation() {
    let world = World::new("approve");
    let attacker = Attacker::new(&world);
    let ticket = ticket(&world, 1);
    // Exposed to be looked for.
    let text = ticket.boot.token.as_ref().unwrap().expose().clone();
    let state = world.state_bytes();
    assert!(
        !state.windows(text.len()).any(|window| window == text.as_bytes()),
        "in no store and no log"
    );
    let list = world.json(&["token", "list", "-o", "json"]);
    assert!(!list.to_string().contains(&text), "{list}");
    let hash = list[0]["hash"].as_str().unwrap();
    assert!(world.meshd(&["token", "revoke", &hash[..12]]).status.success());
    let late = Identity::new();
    let refused = attacker.run(attacker.post(
        &late,
        meshd_proto::ENROL_PATH,
        &enrolment(&ticket, &late.csr()),
    ));
    assert_eq!(refused.expect("an answer").0, 401);
    assert_eq!(world.json(&["node", "list", "-o", "json"]), json!([]), "nobody was let in");
}

#[test]
fn ticket_token_does_not_replace_a_linked_node() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let _agent = machine.start_agent(&machine.boot());
    let node = world.wait_for_phase("online");
    let made = world.json(&["token", "create", node["id"].as_str().unwrap()]);
    let ticket: Ticket = serde_json::from_value(made).unwrap();
    let attacker = Attacker::new(&world);
    let thief = Identity::new();
    let refused = attacker.run(attacker.post(
        &thief,
        meshd_proto::ENROL_PATH,
        &enrolment(&ticket, &thief.csr()),
    ));
    assert_eq!(refused.expect("an answer").0, 401);
    assert_eq!(world.node()["phase"], "online");
}

#[test]
fn machine_that_waits_as_a_netbooted_node_is_refused_with_an_alarm() {
    let world = World::new("approve");
    let machine = PxeNode::new(&world, 1);
    let own = sniffed(&machine.boot());
    let attacker = Attacker::new(&world);
    for (alarms, session) in [(1, own.boot.session), (2, no_session())] {
        let reply = attacker.run(attacker.wait_as(own.boot.node, session));
        assert!(matches!(reply, Some(PendingReply::Rejected { .. })), "{reply:?}");
        let raised = world.events("boot_impersonated");
        assert_eq!(raised.len(), alarms, "{raised:?}");
        let detail = raised.last().unwrap()["detail"].to_string();
        assert!(detail.contains(&STRANGER.to_string()), "{detail}");
    }
}
