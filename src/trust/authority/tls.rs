//! TLS configuration of the agent API.

use super::{
    super::{TrustError, verifier::ExpiredMayRenew},
    certificates::{leaf_params, new_key},
};
use meshd_types::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::NoServerSessionStorage,
};
use std::{sync::Arc, time::Duration};

/// Lifetime of the server certificate, which is created at each start.
const SERVER_CERT_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Presents a new certificate with `chain`; accepts clients that any of `signers` has signed.
pub fn server_config(
    issuer: &Issuer<'_, KeyPair>,
    root: &str,
    chain: Vec<CertificateDer<'static>>,
    signers: Vec<CertificateDer<'static>>,
    now: Timestamp,
) -> Result<Arc<ServerConfig>, TrustError> {
    const WHAT: &str = "the TLS configuration of the agent API";
    let key = new_key()?;
    let not_after = now.after(SERVER_CERT_LIFE);
    let usage = ExtendedKeyUsagePurpose::ServerAuth;
    let mut params = leaf_params(meshd_proto::SERVER_NAME, not_after, usage, root)?;
    params.subject_alt_names = vec![SanType::DnsName(
        meshd_proto::SERVER_NAME.try_into().map_err(TrustError::crypto(WHAT))?,
    )];
    let own = params.signed_by(&key, issuer).map_err(TrustError::crypto(WHAT))?;

    let provider = Arc::new(default_provider());
    let mut anchors = RootCertStore::empty();
    for signer in signers {
        anchors.add(signer).map_err(TrustError::crypto(WHAT))?;
    }
    let verifier =
        ExpiredMayRenew::new(anchors, Arc::clone(&provider)).map_err(TrustError::crypto(WHAT))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let shown = [own.der().clone()].into_iter().chain(chain).collect();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TrustError::crypto(WHAT))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(shown, key)
        .map_err(TrustError::crypto(WHAT))?;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Returns whether one of these issued a certificate with a verified signature, by the issuer's
/// name.
pub fn is_signed_by(der: &[u8], signers: &[CertificateDer<'_>]) -> bool {
    let Ok((_, leaf)) = x509_parser::parse_x509_certificate(der) else { return false };
    signers.iter().any(|signer| {
        x509_parser::parse_x509_certificate(signer)
            .is_ok_and(|(_, signer)| signer.subject().as_raw() == leaf.issuer().as_raw())
    })
}
