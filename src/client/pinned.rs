//! Accepts servers by the fingerprints of their certificates, regardless of their issuers.

use meshd_types::{Digest, hex};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::{collections::BTreeSet, sync::Arc};

/// Returns a TLS configuration that accepts exactly these certificates, by the SHA-256 of each.
///
/// # Errors
/// The cryptographic provider has none of the protocol versions.
pub fn pinned_config(
    certificates: BTreeSet<Digest>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(default_provider());
    let pinned = Arc::new(Pinned { certificates, provider: provider.clone() });
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth())
}

#[derive(Debug)]
struct Pinned {
    certificates: BTreeSet<Digest>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Digest::of(end_entity);
        if self.certificates.contains(&found) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General(format!(
            "the server shows another certificate: SHA-256 {}",
            hex(&found.0)
        )))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
