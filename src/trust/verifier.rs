//! Verifies client certificates in the TLS handshake. Unlike webpki, it accepts an expired
//! certificate of this site, so that a node can renew after a month; the application allows nothing
//! else. Extra certificates from the client are ignored: one of our issuers must have signed the
//! client's own certificate.

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, UnixTime},
    server::{
        VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use std::sync::Arc;

/// Wraps webpki's verifier. A client without a certificate is accepted for enrolment.
#[derive(Debug)]
pub struct ExpiredMayRenew {
    inner: Arc<dyn ClientCertVerifier>,
}

impl ExpiredMayRenew {
    /// Trusts client certificates that these roots signed.
    pub fn new(
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(ExpiredMayRenew { inner: builder.allow_unauthenticated().build()? })
    }
}

impl ClientCertVerifier for ExpiredMayRenew {
    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.inner.verify_client_cert(end_entity, &[], now) {
            // webpki checks the time before the signature, so everything is verified as of the last
            // second of the certificate's stated validity. A forged validity fails the signature
            // check.
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => self.inner.verify_client_cert(end_entity, &[], not_after),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
