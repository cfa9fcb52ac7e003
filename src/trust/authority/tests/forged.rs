//! Tests of attacks with the key of a replaced issuer.

use super::*;
use crate::verifier::ExpiredMayRenew;
use rcgen::{BasicConstraints, IsCa, KeyUsagePurpose};
use rustls::server::danger::ClientCertVerifier as _;

pub(super) fn verify_chain(
    anchors: &[CertificateDer<'static>],
    certificate: &CertificateDer<'_>,
    beside: &[CertificateDer<'_>],
    at: Timestamp,
) -> Result<(), rustls::Error> {
    let mut roots = RootCertStore::empty();
    for anchor in anchors {
        roots.add(anchor.clone()).expect("an anchor");
    }
    let verifier = ExpiredMayRenew::new(roots, Arc::new(default_provider())).expect("a verifier");
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at.seconds() as u64));
    verifier.verify_client_cert(certificate, beside, at).map(|_| ())
}

#[test]
fn certificate_signed_through_former_issuer_is_refused() {
    let (_dir, stolen) = authority();
    let between = certificates::new_key().expect("key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "x");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let beside = params.clone().signed_by(&between, &stolen.issuer).expect("signed").der().clone();
    let mut leaf = leaf_params("x", now().after(GRACE), ExtendedKeyUsagePurpose::ClientAuth, "0a")
        .expect("params");
    leaf.subject_alt_names =
        vec![SanType::URI(format!("{NODE_URI}{}", node()).try_into().expect("a name"))];
    let own = certificates::new_key().expect("key");
    let leaf = leaf.signed_by(&own, &Issuer::new(params, between)).expect("signed").der().clone();

    let rotated = stolen.rotated(Duration::ZERO, now()).expect("another one");
    for authority in [&stolen, &rotated] {
        let passed = verify_chain(&anchors(authority), &leaf, std::slice::from_ref(&beside), now());
        assert!(passed.is_err(), "an issuer has to have signed the certificate itself");
        let named = authority.identify(&leaf, now());
        assert!(matches!(named, Err(TrustError::StaleAuthority { .. })), "{named:?}");
    }
}
