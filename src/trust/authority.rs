//! The site's certificate authority: one P-256 key, made at first start, that signs nodes and the agent plane.
//!
//! `not_before` is 2020-01-01 everywhere: a machine whose clock battery is dead must still find the other side valid.

use super::{Peer, TrustError, files, peer::NODE_URI, verifier::ExpiredMayRenew};
use crate::{
    id::{Digest, NodeId, Timestamp, hex},
    wire,
};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
    SanType, SerialNumber,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::NoServerSessionStorage,
};
use std::{path::Path, sync::Arc, time::Duration};

/// Life of a node's certificate from the day of issue. The agent renews at half of it.
pub const NODE_CERT_LIFE: Duration = Duration::from_secs(14 * DAY_S);
/// Life of the authority.
const AUTHORITY_LIFE: Duration = Duration::from_secs(30 * 365 * DAY_S);
/// Life of the server certificate, which is made anew at each start.
const SERVER_CERT_LIFE: Duration = Duration::from_secs(10 * 365 * DAY_S);
const DAY_S: u64 = 86_400;
/// 2020-01-01T00:00:00Z in milliseconds.
const NOT_BEFORE_MS: i64 = 1_577_836_800_000;
/// Length of a serial number in bytes; RFC 5280 (4.1.2.2) allows 20.
const SERIAL_BYTES: usize = 16;

/// Signs node certificates and recognises them again.
pub struct CertificateAuthority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    server: Arc<ServerConfig>,
}

/// A certificate that was just issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The certificate, PEM.
    pub certificate_pem: String,
    /// Its serial number, lower-case hexadecimal.
    pub serial: String,
    /// Digest of the public key that it certifies.
    pub key: Digest,
    /// End of its life.
    pub not_after: Timestamp,
}

impl Issued {
    /// What the agent is told.
    pub fn response(&self, now: Timestamp) -> wire::EnrolResponse {
        let life_s = self.not_after.since(now).as_secs();
        wire::EnrolResponse { certificate_pem: self.certificate_pem.clone(), life_s }
    }
}

impl CertificateAuthority {
    /// Opens the authority in a folder, or makes it there. A start that was cut off between its two files is completed.
    ///
    /// # Errors
    /// Files that cannot be read or written, that others may read, or that do not belong together. Nothing is overwritten.
    pub fn load_or_create(dir: &Path, site_name: &str, now: Timestamp) -> Result<Self, TrustError> {
        files::make_folder(dir)?;
        let (key_path, certificate_path) = (dir.join(files::KEY_FILE), dir.join(files::CERTIFICATE_FILE));
        let damaged = |path: &Path, detail: &str| TrustError::Damaged { path: path.into(), detail: detail.into() };
        let certificate_pem = files::read(&certificate_path)?;
        let key = match files::read_private(&key_path)? {
            Some(pem) => KeyPair::from_pem(&pem).map_err(|_| damaged(&key_path, "it is not a private key"))?,
            None if certificate_pem.is_some() => {
                return Err(damaged(&key_path, "it is missing beside its certificate"));
            }
            None => {
                let key = new_key()?;
                files::write(&key_path, &key.serialize_pem(), 0o600)?;
                key
            }
        };
        let certificate_pem = match certificate_pem {
            Some(pem) => pem,
            None => {
                let pem = authority_params(site_name, now)?.self_signed(&key).map_err(made("the authority"))?.pem();
                files::write(&certificate_path, &pem, 0o644)?;
                pem
            }
        };
        Self::from_parts(certificate_pem, key, now).map_err(|detail| match detail {
            Ok(detail) => damaged(&certificate_path, detail),
            Err(error) => error,
        })
    }

    fn from_parts(
        certificate_pem: String,
        key: KeyPair,
        now: Timestamp,
    ) -> Result<Self, Result<&'static str, TrustError>> {
        let der =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|_| Ok("it is not a certificate"))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|_| Ok("it is not a certificate"))?;
        if *parsed.public_key().subject_public_key.data != *key.public_key_raw() {
            return Err(Ok("it is not the certificate of the key beside it"));
        }
        let issuer =
            Issuer::from_ca_cert_der(&der, key).map_err(|_| Ok("it is not the certificate of an authority"))?;
        let server = server_config(&issuer, der.clone(), now).map_err(Err)?;
        Ok(CertificateAuthority { certificate_pem, issuer, server })
    }

    /// The authority's own certificate, PEM: what overlays carry to the nodes.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Issues a certificate for the public key of a request. Whatever else the request asks for is ignored.
    ///
    /// # Errors
    /// [`TrustError::Request`] for anything but a P-256 request, self-signed as PKCS #10 wants, within [`wire::MAX_CSR`].
    pub fn issue_node(&self, csr_pem: &str, node: NodeId, now: Timestamp) -> Result<Issued, TrustError> {
        if csr_pem.len() > wire::MAX_CSR {
            return Err(TrustError::Request("it is longer than 4096 bytes"));
        }
        let request = CertificateSigningRequestParams::from_pem(csr_pem).map_err(|error| match error {
            rcgen::Error::InvalidCertificationRequestSignature => {
                TrustError::Request("its signature does not fit its key")
            }
            _ => TrustError::Request("it is not a PKCS #10 request in PEM that this site can read"),
        })?;
        if request.public_key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(TrustError::Request("its key is not a P-256 key"));
        }
        let not_after = now.after(NODE_CERT_LIFE);
        let mut params = leaf_params(&node.to_string(), not_after, ExtendedKeyUsagePurpose::ClientAuth)?;
        let uri = format!("{NODE_URI}{node}").try_into().map_err(made("a node certificate"))?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        let serial = params.serial_number.as_ref().map(SerialNumber::to_bytes).unwrap_or_default();
        let certificate: Certificate =
            params.signed_by(&request.public_key, &self.issuer).map_err(made("a node certificate"))?;
        let key = Digest::of(request.public_key.der_bytes());
        Ok(Issued { certificate_pem: certificate.pem(), serial: hex(&serial), key, not_after })
    }

    /// TLS of the agent plane: version 1.3 only, client certificate optional, an expired one of ours passes and is marked
    /// by [`CertificateAuthority::identify`]. No session is resumed: each connection shows its certificate.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Names the node of a certificate that the handshake of [`CertificateAuthority::server_config`] has let pass.
    ///
    /// # Errors
    /// [`TrustError::Certificate`] if it names none. Signatures are the handshake's business and are not checked here.
    pub fn identify(&self, der: &[u8], now: Timestamp) -> Result<Peer, TrustError> {
        Peer::of(der, now)
    }
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CertificateAuthority")
    }
}

fn made(what: &'static str) -> impl FnOnce(rcgen::Error) -> TrustError {
    TrustError::crypto(what)
}

fn new_key() -> Result<KeyPair, TrustError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(made("a P-256 key"))
}

fn authority_params(site_name: &str, now: Timestamp) -> Result<CertificateParams, TrustError> {
    let mut params = base_params(&format!("meshd site {site_name}"), now.after(AUTHORITY_LIFE))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn leaf_params(
    name: &str,
    not_after: Timestamp,
    usage: ExtendedKeyUsagePurpose,
) -> Result<CertificateParams, TrustError> {
    let mut params = base_params(name, not_after)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn base_params(name: &str, not_after: Timestamp) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = Timestamp::from_millis(NOT_BEFORE_MS).to_datetime();
    params.not_after = not_after.to_datetime();
    params.serial_number = Some(new_serial()?);
    Ok(params)
}

/// Random, positive, and without a leading zero, so that every reader sees the same 16 bytes.
fn new_serial() -> Result<SerialNumber, TrustError> {
    let mut bytes = [0; SERIAL_BYTES];
    getrandom::fill(&mut bytes).map_err(TrustError::crypto("a serial number"))?;
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn server_config(
    issuer: &Issuer<'_, KeyPair>,
    authority: CertificateDer<'static>,
    now: Timestamp,
) -> Result<Arc<ServerConfig>, TrustError> {
    const WHAT: &str = "the TLS configuration of the agent plane";
    let key = new_key()?;
    let mut params = leaf_params(wire::SERVER_NAME, now.after(SERVER_CERT_LIFE), ExtendedKeyUsagePurpose::ServerAuth)?;
    params.subject_alt_names = vec![SanType::DnsName(wire::SERVER_NAME.try_into().map_err(made(WHAT))?)];
    let certificate = params.signed_by(&key, issuer).map_err(made(WHAT))?;

    let provider = Arc::new(default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority).map_err(TrustError::crypto(WHAT))?;
    let verifier = ExpiredMayRenew::new(roots, Arc::clone(&provider)).map_err(TrustError::crypto(WHAT))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TrustError::crypto(WHAT))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![certificate.der().clone()], key)
        .map_err(TrustError::crypto(WHAT))?;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
