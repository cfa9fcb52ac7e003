//! Somebody has a certificate: of a node of their own, of one that was revoked, or one that they
//! made with a stolen authority.

use super::client::{Attacker, Identity, ticket};
use crate::world::{World, node::PxeNode};
use meshd_proto::{Facts, FromCentral, MAX_DEVICES, PciFacts, RENEW_PATH, VERSION};
use meshd_trust::CertificateAuthority;
use meshd_types::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType, SerialNumber};
use serde_json::json;
use std::{fs, path::Path};

#[test]
fn certificate_of_one_node_is_refused_for_another_node() {
    let world = World::new("approve");
    let attacker = Attacker::new(&world);
    let own = ticket(&world, 1);
    let other = ticket(&world, 2);
    let identity = attacker.enrol(&own);
    let victim = attacker.enrol(&other);
    attacker.run(async {
        let mut link = attacker.hello(&identity, other.boot.node, other.boot.session).await;
        let reply = link.hear().await;
        assert!(matches!(&reply, Some(FromCentral::Goodbye { .. })), "{reply:?}");
        let mut link = attacker.hello(&identity, own.boot.node, other.boot.session).await;
        let reply = link.hear().await;
        assert!(
            matches!(&reply, Some(FromCentral::Goodbye { .. })),
            "another node's boot: {reply:?}"
        );
    });
    let renewal = json!({ "version": VERSION, "node": other.boot.node, "csr_pem": victim.csr() });
    let (status, _) =
        attacker.run(attacker.post(&identity, RENEW_PATH, &renewal)).expect("an answer");
    assert_eq!(status, 200, "it may renew, and is no other node by it");
    attacker.run(async {
        let mut link = attacker.hello(&victim, other.boot.node, other.boot.session).await;
        assert!(
            matches!(link.hear().await, Some(FromCentral::Welcome(_))),
            "the other node is untouched"
        );
    });
}

#[test]
fn revoked_certificate_ends_link_and_is_refused_after_restart() {
    let mut world = World::new("approve");
    let own = ticket(&world, 1);
    let node = own.boot.node.to_string();
    let identity = {
        let attacker = Attacker::new(&world);
        let identity = attacker.enrol(&own);
        attacker.run(async {
            let mut link = attacker.hello(&identity, own.boot.node, own.boot.session).await;
            assert!(matches!(link.hear().await, Some(FromCentral::Welcome(_))));
            let revoked = world.meshd(&["ca", "revoke", &node, "--yes"]);
            assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
            let mut last = None;
            while let Some(message) = link.hear().await {
                last = Some(message);
            }
            assert!(
                matches!(last, Some(FromCentral::Goodbye { .. })),
                "the link is over: {last:?}"
            );
        });
        assert_eq!(attacker.link_status(&identity).0, 401);
        identity
    };
    world.kill();
    world.start();
    assert_eq!(Attacker::new(&world).link_status(&identity).0, 401, "also after a restart");
    assert_eq!(world.events("credentials_revoked").len(), 1);
}

#[test]
fn hello_with_more_than_max_devices_is_refused() {
    let world = World::new("approve");
    let attacker = Attacker::new(&world);
    let own = ticket(&world, 1);
    let identity = attacker.enrol(&own);
    let facts =
        |devices: usize| Facts { pci: vec![PciFacts::default(); devices], ..Facts::default() };
    attacker.run(async {
        for (devices, is_accepted) in [(MAX_DEVICES + 1, false), (MAX_DEVICES, true)] {
            let mut link =
                attacker.hello_of(&identity, own.boot.node, own.boot.session, facts(devices)).await;
            let reply = link.hear().await;
            assert_eq!(
                matches!(reply, Some(FromCentral::Welcome(_))),
                is_accepted,
                "{devices}: {reply:?}"
            );
        }
    });
}

/// A copy of the folder, as a thief has it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What an issuer can make: a node's certificate with a serial number that is on record, for
/// another key.
fn with_serial(issuer: &Path, id: &str, serial: &str) -> Identity {
    let read = |name: &str| fs::read_to_string(issuer.join(name)).unwrap();
    let signer = Issuer::from_ca_cert_pem(
        &read("issuer.pem"),
        KeyPair::from_pem(&read("issuer.key")).unwrap(),
    )
    .unwrap();
    let digits = serial.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from_slice(&bytes));
    params.subject_alt_names = vec![SanType::URI(format!("meshd:node:{id}").try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let mut made = Identity::new();
    made.certificate_pem = Some(params.signed_by(&made.key, &signer).unwrap().pem());
    made
}

#[test]
fn certificate_forged_with_stolen_ca_is_refused_before_and_after_rotation() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let agent = machine.start_agent(&machine.boot());
    let node = world.wait_for_phase("online");
    let id = node["id"].as_str().unwrap();
    let loot = tempfile::tempdir().unwrap();
    copy(&world.path("state/ca"), &loot.path().join("ca"));
    let stolen = CertificateAuthority::load_or_create(
        &loot.path().join("ca"),
        "world",
        Timestamp::from_millis(0),
    )
    .unwrap();
    let mut forged = Identity::new();
    let now = Timestamp::from_millis(4_000_000_000_000);
    forged.certificate_pem =
        Some(stolen.issue_node(&forged.csr(), id.parse().unwrap(), now).unwrap().certificate_pem);
    // It is signed as it should be, and stands in no record.
    assert_eq!(Attacker::new(&world).link_status(&forged).0, 401);
    // The store says which serial numbers do, and whoever signs chooses the serial number.
    let serial = world.json(&["node", "show", id, "-o", "json"])["certificates"][0]
        .as_str()
        .unwrap()
        .to_owned();
    let copied = with_serial(&world.path("state/ca").join(stolen.active()), id, &serial);
    assert_eq!(
        Attacker::new(&world).link_status(&copied).0,
        401,
        "its key is not the one on record"
    );
    world.wait_for_phase("online");

    let rotated = world.meshd(&["ca", "rotate", "--grace", "0s", "--yes"]);
    assert!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    let (status, body) = Attacker::new(&world).link_status(&forged);
    assert!(status == 401 && body.contains("stale_ca"), "{status} {body}");
    assert_eq!(
        world.node()["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["kind"] == "stale_ca")
            .count(),
        1
    );
    // Who was there before has to boot again, and then knows the new root alone.
    drop(agent);
    let overlay = machine.boot();
    let boot = String::from_utf8_lossy(&overlay["etc/meshd/boot.json"].1).into_owned();
    assert_eq!(boot.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(
        !stolen.roots_pem().lines().skip(1).any(|line| line.len() > 40 && boot.contains(line)),
        "another root"
    );
    let _agent = machine.start_agent(&overlay);
    let after = world.wait_for_phase("online");
    assert!(!after["conditions"].to_string().contains("stale_ca"), "{after}");
}
