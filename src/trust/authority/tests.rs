//! Tests of the authority: issuing, verification, refusals and files.

use super::{super::NOT_BEFORE_MS, *};
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType};
use rustls::{
    CertificateError, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring::default_provider,
    pki_types::{ServerName, UnixTime, pem::PemObject as _},
};
use std::{fs, os::unix::fs::PermissionsExt as _, sync::LazyLock};

mod forged;
mod root_count;

const NOW: i64 = 1_800_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_millis(NOW)
}

fn node() -> NodeId {
    "0123abcd".parse().expect("a node ID")
}

fn authority() -> (tempfile::TempDir, CertificateAuthority) {
    let dir = tempfile::tempdir().expect("a folder");
    let authority = CertificateAuthority::load_or_create(&dir.path().join("ca"), "rack-a", now())
        .expect("a new one");
    (dir, authority)
}

fn csr(key: &KeyPair) -> String {
    let mut params = CertificateParams::new(vec!["somebody.else".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, "admin");
    params.serialize_request(key).expect("a request").pem().expect("PEM")
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")
}

fn verify(
    authority: &CertificateAuthority,
    certificate: &CertificateDer<'_>,
    at: Timestamp,
) -> Result<(), rustls::Error> {
    verify_by(&anchors(authority), certificate, at)
}

/// Signers that the handshake of an authority accepts.
fn anchors(authority: &CertificateAuthority) -> Vec<CertificateDer<'static>> {
    let manifest = &authority.manifest;
    let retiring = manifest.retiring.iter().map(|old| &old.root);
    let all = retiring.chain([&manifest.active]).chain(&manifest.former);
    all.map(|root| signer(&Folder(&authority.dir), root).expect("there")).collect()
}

fn verify_by(
    anchors: &[CertificateDer<'static>],
    certificate: &CertificateDer<'_>,
    at: Timestamp,
) -> Result<(), rustls::Error> {
    forged::verify_chain(anchors, certificate, &[], at)
}

/// Returns whether a node with these roots accepts the server certificate of the agent API.
fn is_trusted_by(authority: &CertificateAuthority, roots_pem: &str, now: Timestamp) -> bool {
    let folder = Folder(&authority.dir);
    let active = authority.active();
    let mut chain = vec![der(&folder.must_read(&folder.issuer_pem(active)).expect("there"))];
    for old in authority.manifest.retiring.iter().filter(|old| old.until > now) {
        chain.push(der(&folder.must_read(&folder.cross_pem(active, &old.root)).expect("there")));
    }
    let key = certificates::new_key().expect("key");
    let mut params =
        leaf_params("x", now.after(GRACE), ExtendedKeyUsagePurpose::ServerAuth, active)
            .expect("params");
    params.subject_alt_names =
        vec![SanType::DnsName(meshd_proto::SERVER_NAME.try_into().expect("a name"))];
    let own = params.signed_by(&key, &authority.issuer).expect("signed");
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots_pem.as_bytes()) {
        roots.add(root.expect("PEM")).expect("a root");
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
    let verifier = verifier.build().expect("roots");
    let name = ServerName::try_from(meshd_proto::SERVER_NAME).expect("a name");
    let at = UnixTime::since_unix_epoch(Duration::from_secs(now.seconds() as u64));
    verifier.verify_server_cert(own.der(), &chain, &name, &[], at).is_ok()
}

fn issued(authority: &CertificateAuthority) -> Issued {
    authority
        .issue_node(&csr(&certificates::new_key().expect("key")), node(), now())
        .expect("issued")
}

#[test]
fn keys_are_private_and_the_authority_is_the_same_after_a_restart() {
    let (_dir, first) = authority();
    let folder = Folder(&first.dir);
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&first.dir), mode(&first.dir.join("ca.pem"))), (0o700, 0o644));
    for key in [folder.root_key(first.active()), folder.issuer_key(first.active())] {
        assert_eq!(mode(&key), 0o600, "{}", key.display());
    }
    let second =
        CertificateAuthority::load_or_create(&first.dir, "renamed", now()).expect("the old one");
    assert_eq!((first.roots_pem(), first.active()), (second.roots_pem(), second.active()));
    assert_eq!(fs::read_to_string(first.dir.join("ca.pem")).expect("there"), first.roots_pem());
    assert!(verify(&second, &der(&issued(&first).certificate_pem), now()).is_ok());
    assert!(is_trusted_by(&second, first.roots_pem(), now()));
}

#[test]
fn root_key_signs_issuers_only_and_may_be_offline_between_rotations() {
    let (_dir, first) = authority();
    let folder = Folder(&first.dir);
    let key = folder.root_key(first.active());
    let away = first.dir.join("elsewhere");
    let root =
        certificates::Root::read(first.roots_pem(), &fs::read_to_string(&key).expect("there"));
    assert!(root.is_ok_and(|root| root.id == first.active()));
    fs::rename(&key, &away).expect("moved");
    let second = CertificateAuthority::load_or_create(&first.dir, "rack-a", now())
        .expect("opens without it");
    assert!(verify(&second, &der(&issued(&second).certificate_pem), now()).is_ok());
    assert!(!second.roots(now())[0].has_key);
    let refused = second.rotated(GRACE, now()).expect_err("nobody can sign the next issuer");
    assert!(refused.to_string().contains("root.key is missing"), "{refused}");
    fs::rename(&away, &key).expect("back");
    second.rotated(GRACE, now()).expect("rotated");
}

#[test]
fn node_with_any_trusted_root_connects_during_rotation() {
    let (_dir, first) = authority();
    let old = issued(&first);
    let second = first.rotated(GRACE, now()).expect("rotated");
    let third = second
        .rotated(GRACE, now().after(Duration::from_secs(1)))
        .expect("again, before the first is over");
    for (authority, older) in [(&second, vec![&first]), (&third, vec![&first, &second])] {
        assert!(verify(authority, &der(&old.certificate_pem), now()).is_ok());
        assert_eq!(
            authority.identify(&der(&old.certificate_pem), now()).expect("a node").node,
            node()
        );
        assert!(
            !authority.is_current(&old.serial) && authority.is_current(&issued(authority).serial)
        );
        assert_eq!(authority.roots_pem().matches("BEGIN CERTIFICATE").count(), older.len() + 1);
        assert!(is_trusted_by(authority, authority.roots_pem(), now()));
        assert!(older.iter().all(|old| is_trusted_by(authority, old.roots_pem(), now())));
    }
    let opened = CertificateAuthority::load_or_create(&third.dir, "rack-a", now()).expect("opens");
    assert_eq!((opened.roots_pem(), opened.roots(now())), (third.roots_pem(), third.roots(now())));
}

#[test]
fn old_root_is_refused_after_the_grace_time() {
    let (_dir, first) = authority();
    let old = issued(&first);
    let second = first.rotated(Duration::from_secs(60), now()).expect("rotated");
    let late = now().after(Duration::from_secs(61));
    assert!(second.aged(now(), now().after(Duration::from_secs(59))).expect("files").is_none());
    let aged = second.aged(now(), late).expect("files").expect("another one");
    assert_eq!(aged.roots(late).len(), 1);
    assert_eq!(aged.roots_pem().matches("BEGIN CERTIFICATE").count(), 1);
    assert!(!is_trusted_by(&aged, first.roots_pem(), late));
    let stale = aged.identify(&der(&old.certificate_pem), late).expect_err("refused").to_string();
    assert!(stale.contains("replaced") && stale.contains(&node().to_string()), "{stale}");
    assert!(
        verify(&aged, &der(&old.certificate_pem), late).is_ok(),
        "the refusal after the handshake names the cause"
    );
}

#[test]
fn old_root_without_grace_is_refused_at_once_and_its_keys_are_deleted() {
    let (_dir, first) = authority();
    let old = issued(&first);
    let folder = Folder(&first.dir);
    fs::remove_file(folder.root_key(first.active())).expect("not needed for it");
    let second = first.rotated(Duration::ZERO, now()).expect("rotated");
    assert!(matches!(
        second.identify(&der(&old.certificate_pem), now()),
        Err(TrustError::StaleAuthority { node: of }) if of == node()
    ));
    assert!(!folder.issuer_key(first.active()).exists());
    let third = second
        .rotated(GRACE, now())
        .expect("rotated")
        .rotated(Duration::ZERO, now())
        .expect("and stop all");
    assert_eq!(third.roots(now()).len(), 1);
    assert!(!folder.root_key(second.active()).exists());
    assert!(third.identify(&der(&issued(&second).certificate_pem), now()).is_err());
}

#[test]
fn damaged_foreign_or_exposed_file_is_named_and_not_overwritten() {
    let (_dir, first) = authority();
    let folder = Folder(&first.dir);
    let key = folder.issuer_key(first.active());
    let pem = folder.issuer_pem(first.active());
    let good_key = fs::read(&key).expect("there");
    let good_pem = fs::read(&pem).expect("there");
    let open = || {
        CertificateAuthority::load_or_create(&first.dir, "rack-a", now())
            .expect_err("refused")
            .to_string()
    };
    for exposed in [&key, &folder.root_key(first.active())] {
        fs::set_permissions(exposed, fs::Permissions::from_mode(0o640)).expect("ours");
        assert!(open().contains("may be read by other users"), "{}", open());
        fs::set_permissions(exposed, fs::Permissions::from_mode(0o600)).expect("ours");
    }
    fs::write(&key, "junk").expect("written");
    assert!(open().contains("issuer.key: it is not a private key"), "{}", open());
    fs::write(&key, certificates::new_key().expect("key").serialize_pem()).expect("written");
    assert!(
        open().contains("issuer.pem: it is not the certificate of the key beside it"),
        "{}",
        open()
    );
    fs::remove_file(&key).expect("there");
    assert!(open().contains("issuer.key: it is missing"), "{}", open());
    assert!(!key.exists());
    files::write(&key, &String::from_utf8(good_key).expect("PEM"), 0o600).expect("written");
    fs::write(&pem, "junk").expect("written");
    assert!(open().contains("issuer.pem: it is not a certificate"), "{}", open());
    fs::write(&pem, good_pem).expect("written");

    let manifest = first.dir.join("authority.json");
    let good = fs::read_to_string(&manifest).expect("there");
    fs::write(&manifest, good.replace("\"version\": 2", "\"version\": 3")).expect("written");
    assert!(open().contains("version 3"), "{}", open());
    fs::remove_file(&manifest).expect("there");
    assert!(open().contains("authority.json: it is missing"), "{}", open());
}

#[test]
fn certificate_request_supplies_only_its_key() {
    let (_dir, authority) = authority();
    let key = certificates::new_key().expect("key");
    let issued = authority.issue_node(&csr(&key), node(), now()).expect("issued");
    assert_eq!(issued.not_after, now().after(NODE_CERT_LIFE));
    let der = der(&issued.certificate_pem);
    let peer = authority.identify(&der, now()).expect("a node");
    assert_eq!(
        peer,
        Peer { node: node(), serial: issued.serial.clone(), key: issued.key, expired: false }
    );
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).expect("DER");
    assert_eq!(parsed.subject().to_string(), "CN=0123abcd");
    assert_eq!(parsed.validity().not_before.timestamp() * 1000, NOT_BEFORE_MS);
    assert_eq!(&*parsed.public_key().subject_public_key.data, key.public_key_raw());
    assert!(!parsed.is_ca());
    let names =
        parsed.subject_alternative_name().expect("fine").expect("one").value.general_names.len();
    assert_eq!(names, 1);
    let again = authority.issue_node(&csr(&key), node(), now()).expect("issued");
    assert_ne!(again.serial, issued.serial, "a renewal has another serial number");
}

#[test]
fn expired_certificate_passes_the_handshake_and_is_marked() {
    let (_dir, authority) = authority();
    let issued = issued(&authority);
    let certificate = der(&issued.certificate_pem);
    let last = issued.not_after;
    let late = last.after(Duration::from_secs(400 * DAY_S));
    let early = Timestamp::from_millis(NOT_BEFORE_MS);
    for (at, expired) in [(early, true), (now(), false), (last, false), (late, true)] {
        verify(&authority, &certificate, at).expect("passes");
        // A certificate that is valid for years was issued by a clock in the future.
        assert_eq!(authority.identify(&certificate, at).expect("a node").expired, expired, "{at}");
    }
    let too_early = verify(&authority, &certificate, Timestamp::from_millis(NOT_BEFORE_MS - 1000));
    assert!(too_early.is_err());
}

#[test]
fn expired_certificate_of_another_site_or_use_is_refused() {
    let ((_a, ours), (_b, theirs)) = (authority(), authority());
    let issued = issued(&theirs);
    let late = issued.not_after.after(Duration::from_secs(10));
    for at in [now(), late] {
        let verdict = verify(&ours, &der(&issued.certificate_pem), at);
        let Err(rustls::Error::InvalidCertificate(error)) = verdict else { panic!("{verdict:?}") };
        assert!(
            matches!(error, CertificateError::UnknownIssuer | CertificateError::BadSignature),
            "{error:?}"
        );
    }
    let key = certificates::new_key().expect("key");
    let params = leaf_params("x", now(), ExtendedKeyUsagePurpose::ServerAuth, ours.active())
        .expect("params");
    let server = params.signed_by(&key, &ours.issuer).expect("signed");
    for at in [now(), late] {
        assert!(verify(&ours, server.der(), at).is_err(), "a server certificate is no node");
    }
    assert!(ours.identify(server.der(), now()).is_err());
}

#[test]
fn malformed_certificate_request_is_refused() {
    let (_dir, authority) = authority();
    let refused =
        |text: &str| authority.issue_node(text, node(), now()).expect_err("refused").to_string();
    let good = csr(&certificates::new_key().expect("key"));
    assert!(refused(&format!("{good}{}", "x".repeat(4096))).contains("longer than"));
    assert!(refused("").contains("not a PKCS #10 request"));
    let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("key");
    assert!(refused(&csr(&other)).contains("P-256"));
    let mut bytes =
        CertificateSigningRequestParams::from_pem(&good).map(|_| pem_body(&good)).expect("good");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(refused(&to_pem(&bytes)).contains("signature"), "{}", refused(&to_pem(&bytes)));
}

fn pem_body(pem: &str) -> Vec<u8> {
    rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
        .expect("PEM")
        .to_vec()
}

fn public_key(certificate: &CertificateDer<'_>) -> Vec<u8> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).expect("DER");
    parsed.public_key().subject_public_key.data.to_vec()
}

/// Base64 by hand: no package of ours writes arbitrary bytes as PEM.
fn to_pem(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut body = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = char::from(DIGITS[(word >> (18 - 6 * index) & 63) as usize]);
            body.push(if index <= chunk.len() { digit } else { '=' });
        }
    }
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
}

/// An authority whose folder is deleted, its signers, a request and a certificate.
struct Shared {
    authority: CertificateAuthority,
    anchors: Vec<CertificateDer<'static>>,
    request: Vec<u8>,
    certificate: Vec<u8>,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    let (_dir, authority) = authority();
    let request = csr(&certificates::new_key().expect("key"));
    let issued = authority.issue_node(&request, node(), now()).expect("issued");
    let anchors = anchors(&authority);
    let certificate = der(&issued.certificate_pem).to_vec();
    Shared { authority, anchors, request: pem_body(&request), certificate }
});

proptest! {
    #[test]
    fn junk_and_mutations_never_panic(
        text in "\\PC{0,200}", bytes: Vec<u8>, at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let Shared { authority, anchors, request, certificate } = &*SHARED;
        let _ = authority.issue_node(&text, node(), now());
        let _ = authority.issue_node(&to_pem(&bytes), node(), now());
        let _ = authority.identify(&bytes, now());
        let mut altered = request.clone();
        altered[at.index(request.len())] ^= flip;
        // Only the outermost tag may change unnoticed, so an accepted request has the same key.
        if let Ok(issued) = authority.issue_node(&to_pem(&altered), node(), now()) {
            let issued = der(&issued.certificate_pem);
            prop_assert_eq!(public_key(&issued), public_key(&CertificateDer::from(certificate.clone())));
        }
        let mut altered = certificate.clone();
        altered[at.index(certificate.len())] ^= flip;
        let _ = authority.identify(&altered, now());
        prop_assert!(verify_by(anchors, &CertificateDer::from(altered), now()).is_err());
    }
}
