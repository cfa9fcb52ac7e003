//! Somebody asks in the name of a machine whose boot is over, or that runs: a program on the node,
//! or a machine that claims its address.

use super::boot_lan::STRANGER_MAC;
use crate::{
    boot::sessions::rig::{Machine, Rig},
    world::World,
};
use meshd_central::{ConnectionFate, LanClient, ObservedConnection, SegmentSources};
use meshd_config::Delivery;
use meshd_model::{
    boot::BootFailure,
    fleet::{ConditionKind, DhcpClient, Stage},
};
use meshd_proto::EnrolRequest;
use meshd_types::Secret;
use rcgen::{CertificateParams, KeyPair};
use std::{net::Ipv4Addr, sync::Arc};

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);

#[tokio::test]
async fn address_at_another_nic_gets_no_script() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::IpxeDhcp).await;
    rig.wire.put(machine.address, STRANGER_MAC);
    machine.ask_script().await;
    assert!(machine.script.contains("# refusal no_session"), "{}", machine.script);
    let events = rig.events("boot_impersonated");
    assert!(
        events.iter().any(|event| event.detail.contains(&STRANGER_MAC.to_string())),
        "{events:?}"
    );
}

#[tokio::test]
async fn address_at_another_nic_gets_no_overlay() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    rig.wire.put(machine.address, STRANGER_MAC);
    let capability = machine.capability().to_owned();
    assert!(rig.central.boot.probe_overlay(&capability, machine.address).await.is_err());
    assert!(
        rig.central
            .boot
            .open_overlay(&capability, Delivery::Initrd, machine.address)
            .await
            .is_err()
    );
    assert!(rig.condition(machine.id(), ConditionKind::BootImpersonated).is_some(), "an alarm");
}

/// A connection with these Ethernet sources. Without any, no frame was seen: they had nested tags,
/// or were fragments, and a switch floods the answers to a silent machine.
#[derive(Default)]
struct Connection(SegmentSources, ConnectionFate);

impl ObservedConnection for Connection {
    fn sources(&self) -> SegmentSources {
        self.0.clone()
    }

    fn fate(&self) -> &ConnectionFate {
        &self.1
    }
}

#[tokio::test]
async fn one_connection_raises_an_alarm_about_each_node_that_it_names() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = Machine::new(&rig, 1);
    let mut second = Machine::new(&rig, 2);
    first.boot(Stage::Script).await;
    second.boot(Stage::Script).await;
    let sources = SegmentSources { macs: vec![STRANGER_MAC], is_complete: true, is_routed: false };
    let connection = Connection(sources, ConnectionFate::default());
    let stranger = LanClient::new(OTHER.into(), Some(Arc::new(connection)));
    // Invented machines first: their alarms must not use up the limit.
    for number in 3..60 {
        Machine::new(&rig, number).script_for(stranger.clone()).await;
    }
    for machine in [&first, &second, &first] {
        let answer = machine.script_for(stranger.clone()).await;
        assert!(answer.contains("# refusal no_session"), "{answer}");
        assert!(
            rig.condition(machine.id(), ConditionKind::BootImpersonated).is_some(),
            "an alarm about {}",
            machine.mac
        );
    }
    assert_eq!(
        rig.events("boot_impersonated").len(),
        3,
        "one about all invented machines, one about each node"
    );
}

#[tokio::test]
async fn connection_without_a_seen_frame_gets_no_overlay() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    rig.wire.put(machine.address, machine.mac);
    let capability = machine.capability().to_owned();
    let unseen = LanClient::new(machine.address.into(), Some(Arc::new(Connection::default())));
    assert!(rig.central.boot.open_overlay(&capability, Delivery::Initrd, unseen).await.is_err());
    assert!(rig.condition(machine.id(), ConditionKind::BootImpersonated).is_some(), "an alarm");
    assert!(
        rig.central.boot.open_overlay(&capability, Delivery::Initrd, machine.address).await.is_ok(),
        "its own"
    );
}

#[tokio::test]
async fn session_gives_one_overlay_until_the_next_dhcp_exchange() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Overlay).await;
    machine.ask_script().await;
    assert!(machine.script.contains("# refusal no_session"), "{}", machine.script);
    assert!(rig.condition(machine.id(), ConditionKind::BootImpersonated).is_some(), "an alarm");
    // A script that failed repeats DHCP before it asks again.
    machine.dhcp(DhcpClient::Ipxe).await;
    machine.ask_script().await;
    assert!(machine.script.contains("/overlay/"), "{}", machine.script);
    for stage in [Stage::Overlay, Stage::Enrolled] {
        machine.step(stage).await;
        machine.ask_script().await;
        assert!(machine.script.contains("# refusal no_session"), "{stage:?}: {}", machine.script);
    }
}

#[tokio::test]
async fn used_token_is_shown_again_only_by_its_machine() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::OsDhcp).await;
    rig.wire.put(machine.address, machine.mac);
    rig.wire.put(OTHER, STRANGER_MAC);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let csr_pem = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let request = || EnrolRequest {
        version: machine.version,
        node: machine.id(),
        session: machine.session(),
        token: Secret::new(machine.token.clone().unwrap()),
        csr_pem: csr_pem.clone(),
    };
    let enrol = |from: Ipv4Addr| rig.central.enrolment.enrol(request(), LanClient::from(from));
    enrol(machine.address).await.unwrap();
    assert!(enrol(OTHER).await.is_err(), "the same key from another machine");
    assert_eq!(rig.events("capability_replayed").len(), 1);
    enrol(machine.address).await.expect("its answer may have been lost");
}

#[tokio::test]
async fn boot_records_are_written_only_by_their_machine() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    let session = machine.session();
    let reached = |stage| {
        rig.central.store().read(|model| model.session(session).unwrap().reached(stage).is_some())
    };
    let failure = || BootFailure { session, reason: "no disk".to_owned() };
    rig.wire.put(machine.address, STRANGER_MAC);
    machine.step(Stage::Kernel).await;
    assert!(!reached(Stage::Kernel), "another machine has claimed the address");
    rig.wire.put(machine.address, machine.mac);
    machine.step(Stage::Kernel).await;
    assert!(reached(Stage::Kernel));
    rig.wire.put(machine.address, STRANGER_MAC);
    assert!(
        !rig.central.boot.record_failed_boot(machine.address, failure()).await,
        "another machine reports the failure"
    );
    let message =
        |text: &str| rig.central.boot.store_kernel_message(machine.address, text.to_owned());
    // More than the budget, so that it would leave none for the machine.
    for _ in 0..40 {
        message(&"forged\n".repeat(1 << 10)).await;
    }
    rig.wire.put(machine.address, machine.mac);
    message("Kernel panic\n").await;
    let log = rig.central.boot.boot_log(session, 0).await.unwrap().lines;
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("Kernel panic") && !log.contains("forged"), "{log}");
    assert!(rig.central.boot.record_failed_boot(machine.address, failure()).await);
}

#[tokio::test]
async fn failed_handshake_from_another_machine_raises_no_alarm() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::OsDhcp).await;
    let stale = || rig.condition(machine.id(), ConditionKind::StaleCa).is_some();
    rig.wire.put(machine.address, STRANGER_MAC);
    rig.central.enrolment.record_failed_handshake(&LanClient::from(machine.address)).await;
    assert!(!stale(), "another machine has claimed the address");
    rig.wire.put(machine.address, machine.mac);
    rig.central.enrolment.record_failed_handshake(&LanClient::from(machine.address)).await;
    assert!(stale(), "the machine itself");
}
