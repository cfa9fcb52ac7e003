//! The authority: what it issues, whom it recognises, what it refuses, and what lies on disk.

use super::*;
use proptest::prelude::*;
use rustls::{CertificateError, pki_types::UnixTime, server::danger::ClientCertVerifier as _};
use std::{fs, os::unix::fs::PermissionsExt as _, sync::LazyLock};

const NOW: i64 = 1_800_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_millis(NOW)
}

fn node() -> NodeId {
    "0123abcd".parse().expect("a node ID")
}

fn authority() -> (tempfile::TempDir, CertificateAuthority) {
    let dir = tempfile::tempdir().expect("a folder");
    let authority = CertificateAuthority::load_or_create(&dir.path().join("ca"), "rack-a", now()).expect("a new one");
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
    let mut roots = RootCertStore::empty();
    roots.add(der(authority.certificate_pem())).expect("a root");
    let verifier = ExpiredMayRenew::new(roots, Arc::new(default_provider())).expect("a verifier");
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at.seconds() as u64));
    verifier.verify_client_cert(certificate, &[], at).map(|_| ())
}

#[test]
fn the_key_is_private_and_the_authority_is_the_same_after_a_restart() {
    let (dir, first) = authority();
    let folder = dir.path().join("ca");
    let mode = |name: &str| fs::metadata(folder.join(name)).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode("ca.key"), mode("ca.pem")), (0o600, 0o644));
    assert_eq!(fs::metadata(&folder).expect("there").permissions().mode() & 0o777, 0o700);
    let second = CertificateAuthority::load_or_create(&folder, "renamed", now()).expect("the old one");
    assert_eq!(first.certificate_pem(), second.certificate_pem());
    assert_eq!(fs::read_dir(&folder).expect("there").count(), 2, "nothing else is left there");
}

#[test]
fn a_start_that_was_cut_off_between_its_files_is_completed() {
    let (dir, first) = authority();
    let folder = dir.path().join("ca");
    fs::remove_file(folder.join("ca.pem")).expect("there");
    fs::write(folder.join("ca.new"), "half").expect("written");
    let second = CertificateAuthority::load_or_create(&folder, "rack-a", now()).expect("completed");
    let issued = second.issue_node(&csr(&new_key().expect("key")), node(), now()).expect("issued");
    assert!(verify(&first, &der(&issued.certificate_pem), now()).is_ok(), "the key, and so the trust, is the old one");
}

#[test]
fn damaged_foreign_or_exposed_files_are_named_and_nothing_is_overwritten() {
    let (dir, _) = authority();
    let folder = dir.path().join("ca");
    let key = folder.join("ca.key");
    let good = fs::read_to_string(&key).expect("there");
    let open = || CertificateAuthority::load_or_create(&folder, "rack-a", now()).expect_err("refused").to_string();

    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("ours");
    assert!(open().contains("chmod 600"), "{}", open());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("ours");

    fs::write(&key, "junk").expect("written");
    assert!(open().contains("ca.key: it is not a private key"), "{}", open());
    fs::write(&key, new_key().expect("key").serialize_pem()).expect("written");
    assert!(open().contains("ca.pem: it is not the certificate of the key beside it"), "{}", open());
    fs::remove_file(&key).expect("there");
    assert!(open().contains("missing beside its certificate"), "{}", open());
    assert!(!key.exists());

    fs::write(&key, good).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("ours");
    fs::write(folder.join("ca.pem"), "junk").expect("written");
    assert!(open().contains("ca.pem: it is not a certificate"), "{}", open());
}

#[test]
fn a_request_gives_its_key_and_nothing_else() {
    let (_dir, authority) = authority();
    let key = new_key().expect("key");
    let issued = authority.issue_node(&csr(&key), node(), now()).expect("issued");
    assert_eq!(issued.not_after, now().after(NODE_CERT_LIFE));
    let der = der(&issued.certificate_pem);
    let peer = authority.identify(&der, now()).expect("a node");
    assert_eq!(peer, Peer { node: node(), serial: issued.serial.clone(), expired: false });
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).expect("DER");
    assert_eq!(parsed.subject().to_string(), "CN=0123abcd");
    assert_eq!(parsed.validity().not_before.timestamp() * 1000, NOT_BEFORE_MS);
    assert_eq!(&*parsed.public_key().subject_public_key.data, key.public_key_raw());
    assert!(!parsed.is_ca());
    let names = parsed.subject_alternative_name().expect("fine").expect("one").value.general_names.len();
    assert_eq!(names, 1);
    let again = authority.issue_node(&csr(&key), node(), now()).expect("issued");
    assert_ne!(again.serial, issued.serial, "a renewal of the same key is told apart");
}

#[test]
fn an_expired_certificate_passes_the_handshake_and_is_marked() {
    let (_dir, authority) = authority();
    let issued = authority.issue_node(&csr(&new_key().expect("key")), node(), now()).expect("issued");
    let certificate = der(&issued.certificate_pem);
    let last = issued.not_after;
    let late = last.after(Duration::from_secs(400 * DAY_S));
    for at in [Timestamp::from_millis(NOT_BEFORE_MS), now(), last, late] {
        verify(&authority, &certificate, at).expect("passes");
        assert_eq!(authority.identify(&certificate, at).expect("a node").expired, at == late);
    }
    let too_early = verify(&authority, &certificate, Timestamp::from_millis(NOT_BEFORE_MS - 1000));
    assert!(too_early.is_err());
}

#[test]
fn a_certificate_of_another_site_or_another_use_fails_even_when_it_has_expired() {
    let ((_a, ours), (_b, theirs)) = (authority(), authority());
    let issued = theirs.issue_node(&csr(&new_key().expect("key")), node(), now()).expect("issued");
    let late = issued.not_after.after(Duration::from_secs(10));
    for at in [now(), late] {
        let verdict = verify(&ours, &der(&issued.certificate_pem), at);
        assert!(
            matches!(
                verdict,
                Err(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature
                ))
            ),
            "{verdict:?}"
        );
    }
    let key = new_key().expect("key");
    let params = leaf_params("x", now(), ExtendedKeyUsagePurpose::ServerAuth).expect("params");
    let server = params.signed_by(&key, &ours.issuer).expect("signed");
    for at in [now(), late] {
        assert!(verify(&ours, server.der(), at).is_err(), "a server certificate is no node");
    }
    assert!(ours.identify(server.der(), now()).is_err());
}

#[test]
fn a_request_that_is_too_long_altered_or_of_another_kind_is_refused() {
    let (_dir, authority) = authority();
    let refused = |text: &str| authority.issue_node(text, node(), now()).expect_err("refused").to_string();
    let good = csr(&new_key().expect("key"));
    assert!(refused(&format!("{good}{}", "x".repeat(4096))).contains("longer than"));
    assert!(refused("").contains("not a PKCS #10 request"));
    let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("key");
    assert!(refused(&csr(&other)).contains("P-256"));
    let mut bytes = CertificateSigningRequestParams::from_pem(&good).map(|_| pem_body(&good)).expect("good");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(refused(&to_pem(&bytes)).contains("signature"), "{}", refused(&to_pem(&bytes)));
}

fn pem_body(pem: &str) -> Vec<u8> {
    rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).expect("PEM").to_vec()
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
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = char::from(DIGITS[(word >> (18 - 6 * place) & 63) as usize]);
            body.push(if place <= chunk.len() { digit } else { '=' });
        }
    }
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
}

static SHARED: LazyLock<(CertificateAuthority, Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let (_dir, authority) = authority();
    let request = csr(&new_key().expect("key"));
    let issued = authority.issue_node(&request, node(), now()).expect("issued");
    let certificate = der(&issued.certificate_pem).to_vec();
    (authority, pem_body(&request), certificate)
});

proptest! {
    #[test]
    fn junk_and_mutations_never_panic(
        text in "\\PC{0,200}", bytes: Vec<u8>, at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let (authority, request, certificate) = &*SHARED;
        let _ = authority.issue_node(&text, node(), now());
        let _ = authority.issue_node(&to_pem(&bytes), node(), now());
        let _ = authority.identify(&bytes, now());
        let mut altered = request.clone();
        altered[at.index(request.len())] ^= flip;
        // The outermost tag is read loosely; what is signed cannot change, so at most the same key gets its certificate.
        if let Ok(issued) = authority.issue_node(&to_pem(&altered), node(), now()) {
            let issued = der(&issued.certificate_pem);
            prop_assert_eq!(public_key(&issued), public_key(&CertificateDer::from(certificate.clone())));
        }
        let mut altered = certificate.clone();
        altered[at.index(certificate.len())] ^= flip;
        let _ = authority.identify(&altered, now());
        prop_assert!(verify(authority, &CertificateDer::from(altered), now()).is_err());
    }
}
