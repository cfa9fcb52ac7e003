//! What a link stands on: a certificate that is renewed over it, and one that is revoked.

use super::rig::{Machine, Rig, certificate_request, ordered};
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_central::AgentApiError;
use meshd_model::fleet::{AuditContext, Principal, Stage, Verb};
use meshd_proto::{
    EnrolRequest, FromAgent, FromCentral, Heartbeat, Hello, PendingHello, PendingReply, VERSION,
};
use meshd_trust::Peer;
use rcgen::{CertificateParams, KeyPair};
use std::time::Duration;

fn renewal() -> FromAgent {
    FromAgent::Renew { csr_pem: certificate_request() }
}

#[tokio::test]
async fn certificate_renewed_over_a_link_keeps_it_and_voids_the_old_one() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let link = machine.link.expect("a link");
    let old = rig.node(id).certificates.last().cloned().expect("a certificate");
    let reply = rig.central.agents.link_message(link, renewal()).await;
    assert!(matches!(reply, Ok(Some(FromCentral::Certificate(_)))), "{reply:?}");
    let both = rig.node(id).certificates;
    assert_eq!(
        both.len(),
        2,
        "its answer may be lost: the old one counts until the new one is kept"
    );
    assert!(rig.central.enrolment.check_certificate(id, &old).is_ok());
    assert!(matches!(rig.central.agents.link_message(link, FromAgent::Renewed).await, Ok(None)));
    assert_eq!(rig.node(id).certificates, both[1..]);
    assert!(matches!(
        rig.central.enrolment.check_certificate(id, &old),
        Err(AgentApiError::Unauthorized)
    ));
    let heartbeat = || FromAgent::Heartbeat(Heartbeat::default());
    assert!(
        matches!(rig.central.agents.link_message(link, heartbeat()).await, Ok(None)),
        "the link goes on"
    );
    assert!(
        matches!(rig.central.agents.link_message(link, renewal()).await, Ok(Some(_))),
        "also for the next renewal"
    );

    let by = AuditContext::new(
        Principal::Meshd,
        Verb::CertificateRevoke,
        rig.central.env.new_correlation(),
    );
    assert_eq!(rig.central.nodes.revoke(id, &by).await.expect("revoked").certificates, Vec::new());
    assert!(rig.central.links.link_state(id).since.is_none(), "gone before it returns");
    for message in [heartbeat(), renewal(), FromAgent::Renewed] {
        let refused = rig.central.agents.link_message(link, message).await;
        assert!(matches!(refused, Err(AgentApiError::Unauthorized)), "{refused:?}");
    }
}

#[tokio::test]
async fn answer_to_either_of_two_renewals_opens_the_next_link() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let link = machine.link.expect("a link");
    let say = async |message| rig.central.agents.link_message(link, message).await;
    let used = rig.node(id).certificates.last().cloned().expect("a certificate");
    for _ in 0..20 {
        assert!(matches!(say(renewal()).await, Ok(Some(FromCentral::Certificate(_)))));
    }
    let bounded = rig.node(id).certificates;
    assert!(bounded.contains(&used) && bounded.len() == 4, "{bounded:?}");
    assert!(matches!(say(FromAgent::Renewed).await, Ok(None)));
    let newer = rig.node(id).certificates;
    assert_eq!(newer, bounded[1..], "the node has stored one of them");
    // The link breaks before the other answers arrive.
    let first = newer[0].clone();
    let peer = Peer { node: id, serial: first.serial.clone(), key: first.key, expired: false };
    let session = machine.session();
    let hello = Hello { version: VERSION, node: id, session, facts: machine.facts.clone() };
    let (commands, _inbox) = tokio::sync::mpsc::channel(8);
    let linked = rig.central.agents.link_up(&peer, hello, machine.address.into(), commands).await;
    assert!(linked.is_ok(), "{:?}", linked.err());
    assert_eq!(rig.node(id).certificates, [first]);
}

#[tokio::test]
async fn ca_rotation_without_grace_removes_node_certificates() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let (id, before) = (machine.id(), rig.node(machine.id()).certificates);
    let by = AuditContext::new(Principal::Meshd, Verb::CaRotate, rig.central.env.new_correlation());
    rig.central
        .enrolment
        .rotate_authority(Duration::from_secs(60), false, &by)
        .await
        .expect("rotated");
    assert_eq!(rig.node(id).certificates, before, "it renews within the grace time");
    rig.central.enrolment.rotate_authority(Duration::ZERO, false, &by).await.expect("rotated");
    assert_eq!(rig.node(id).certificates, Vec::new());
    assert!(
        rig.central.enrolment.check_certificate(id, &before[0]).is_err(),
        "also on a connection that was there before"
    );
}

#[tokio::test]
async fn reenrolment_may_be_repeated_with_the_same_key_before_linking() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    rig.pass(Duration::from_secs(2)).await;
    let by = AuditContext::new(Principal::Meshd, Verb::CaRotate, rig.central.env.new_correlation());
    rig.central.enrolment.rotate_authority(Duration::ZERO, true, &by).await.expect("rotated");
    assert_eq!(rig.node(id).certificates, Vec::new());
    let token = machine.tokens.as_mut().unwrap().recv().await.expect("a token by its link");
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let session = machine.session();
    let request = |key: &KeyPair| EnrolRequest {
        version: VERSION,
        node: id,
        session,
        token: token.clone(),
        csr_pem: CertificateParams::default().serialize_request(key).unwrap().pem().unwrap(),
    };
    for _ in 0..2 {
        rig.pass(Duration::from_secs(1)).await;
        rig.central
            .enrolment
            .enrol(request(&key), machine.address.into())
            .await
            .expect("the same key, before any link");
    }
    let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let refused = rig.central.enrolment.enrol(request(&other), machine.address.into()).await;
    assert!(matches!(refused, Err(AgentApiError::Unauthorized)), "the token is used: {refused:?}");
    rig.pass(Duration::from_secs(1)).await;
    machine.link_up().await;
    let refused = rig.central.enrolment.enrol(request(&key), machine.address.into()).await;
    assert!(matches!(refused, Err(AgentApiError::Unauthorized)), "it has its answer: {refused:?}");
}

#[tokio::test]
async fn ca_rotation_without_grace_voids_earlier_enrolment_tokens() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let by = AuditContext::new(Principal::Meshd, Verb::CaRotate, rig.central.env.new_correlation());
    rig.central.enrolment.rotate_authority(Duration::ZERO, true, &by).await.expect("rotated");
    let token = machine.tokens.as_mut().unwrap().recv().await.expect("a token by its link");
    rig.central.enrolment.rotate_authority(Duration::ZERO, false, &by).await.expect("rotated");
    machine.token = Some(token.expose().clone());
    let hash = meshd_trust::enrol_token::hash(token.expose());
    assert!(
        rig.central.store().read(|model| model.token(&hash).is_none()),
        "only a boot brings the node back"
    );
}

/// An agent that lost its certificate asks again and again in the same boot.
#[tokio::test]
async fn node_whose_pending_connection_is_rejected_is_fenced_after_its_silence() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    machine.lose_power().await;
    let id = machine.id();
    rig.clock.turn(rig.central.site().agent.offline_after + Duration::from_secs(1));
    let hello = PendingHello {
        version: machine.version,
        node: id,
        session: machine.session(),
        csr_pem: certificate_request(),
        facts: machine.facts.clone(),
    };
    let last_seen = rig.node(id).last_seen;
    let pending = rig.central.enrolment.pending(hello, machine.address.into()).await;
    let reply = pending.unwrap().next().await;
    assert!(matches!(reply, PendingReply::Rejected { .. }), "{reply:?}");
    assert_eq!(rig.node(id).last_seen, last_seen);
    rig.central.nodes.fence(id, &ordered(Verb::Fence)).await.unwrap();
}
