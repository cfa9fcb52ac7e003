//! Makes the keys and certificates of roots, issuers and nodes.

use super::super::{NOT_BEFORE_MS, TrustError};
use meshd_types::{Digest, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use std::{path::Path, time::Duration};

/// Lifetime of roots and issuers: longer than that of any site. Rotation replaces them.
const AUTHORITY_LIFE: Duration = Duration::from_secs(30 * 365 * 86_400);
/// Length of a root's name.
pub const ID_LEN: usize = 8;
/// First byte of the serial number of certificates by an issuer; the name of its root follows, then
/// random bytes.
const SERIAL_MARK: u8 = 0x4d;
/// Random bytes of a serial number; RFC 5280 (4.1.2.2) allows 20 in all.
const SERIAL_RANDOM: usize = 12;

/// A root with its key, which signs issuers.
pub struct Root {
    pub id: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Fault of a key or of its certificate.
pub enum InvalidPair {
    Key(&'static str),
    Certificate(&'static str),
}

impl InvalidPair {
    /// Returns the error of the damaged one of these files.
    pub fn in_files(self, key: &Path, certificate: &Path) -> TrustError {
        match self {
            InvalidPair::Key(detail) => TrustError::damaged(key, detail),
            InvalidPair::Certificate(detail) => TrustError::damaged(certificate, detail),
        }
    }
}

/// Reads an authority's certificate and its key.
pub fn read(
    pem: &str,
    key_pem: &str,
) -> Result<(CertificateDer<'static>, Issuer<'static, KeyPair>), InvalidPair> {
    let key =
        KeyPair::from_pem(key_pem).map_err(|_| InvalidPair::Key("it is not a private key"))?;
    let der = certificate(pem).ok_or(InvalidPair::Certificate("it is not a certificate"))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der)
        .map_err(|_| InvalidPair::Certificate("it is not a certificate"))?;
    if *parsed.public_key().subject_public_key.data != *key.public_key_raw() {
        return Err(InvalidPair::Certificate("it is not the certificate of the key beside it"));
    }
    let issuer = Issuer::from_ca_cert_der(&der, key)
        .map_err(|_| InvalidPair::Certificate("it is not the certificate of an authority"))?;
    Ok((der, issuer))
}

/// Returns the first certificate of a text.
pub fn certificate(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok()
}

impl Root {
    pub fn read(pem: &str, key_pem: &str) -> Result<Self, InvalidPair> {
        let (_, issuer) = read(pem, key_pem)?;
        Ok(Root { id: root_id(issuer.key().public_key_raw()), issuer })
    }
}

/// Returns the name of a root: the beginning of the digest of its public key.
fn root_id(public_key: &[u8]) -> String {
    Digest::of(public_key).to_string()[..ID_LEN].to_owned()
}

/// A new root with its issuer.
pub struct NewRoot {
    pub id: String,
    pub root_key: String,
    pub root_pem: String,
    pub issuer_key: String,
    pub issuer_pem: String,
    /// Certificates of the issuer under older roots, by their names.
    pub crosses: Vec<(String, String)>,
}

/// Creates a root that signs one issuer; older roots sign the same issuer.
pub fn authority(site_name: &str, now: Timestamp, older: &[Root]) -> Result<NewRoot, TrustError> {
    let root_key = new_key()?;
    let id = root_id(root_key.public_key_raw());
    let root = authority_params(&format!("meshd site {site_name} root {id}"), 1, &id, now)?;
    let root_pem = root.self_signed(&root_key).map_err(TrustError::crypto("a root"))?.pem();
    let keys = root_key.serialize_pem();
    let root = Issuer::new(root, root_key);
    let key = new_key()?;
    let issuer = authority_params(&format!("meshd site {site_name} issuer {id}"), 0, &id, now)?;
    let issuer_pem =
        issuer.clone().signed_by(&key, &root).map_err(TrustError::crypto("an issuer"))?.pem();
    let cross = |old: &Root| {
        let mut params = issuer.clone();
        params.serial_number = Some(new_serial(&id)?);
        Ok((
            old.id.clone(),
            params.signed_by(&key, &old.issuer).map_err(TrustError::crypto("an issuer"))?.pem(),
        ))
    };
    let crosses = older.iter().map(cross).collect::<Result<_, TrustError>>()?;
    Ok(NewRoot {
        id,
        root_key: keys,
        root_pem,
        issuer_key: key.serialize_pem(),
        issuer_pem,
        crosses,
    })
}

pub fn new_key() -> Result<KeyPair, TrustError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(TrustError::crypto("a P-256 key"))
}

fn authority_params(
    name: &str,
    below: u8,
    id: &str,
    now: Timestamp,
) -> Result<CertificateParams, TrustError> {
    let mut params = base_params(name, now.after(AUTHORITY_LIFE), id)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Parameters of a certificate that signs nothing.
pub fn leaf_params(
    name: &str,
    not_after: Timestamp,
    usage: ExtendedKeyUsagePurpose,
    root: &str,
) -> Result<CertificateParams, TrustError> {
    let mut params = base_params(name, not_after, root)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn base_params(
    name: &str,
    not_after: Timestamp,
    root: &str,
) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = Timestamp::from_millis(NOT_BEFORE_MS).to_datetime();
    params.not_after = not_after.to_datetime();
    params.serial_number = Some(new_serial(root)?);
    Ok(params)
}

/// Positive and without a leading zero, so that every reader sees the same bytes; [`signed_under`]
/// reads it.
fn new_serial(root: &str) -> Result<SerialNumber, TrustError> {
    let mut random = [0; SERIAL_RANDOM];
    getrandom::fill(&mut random).map_err(TrustError::crypto("a serial number"))?;
    let root: [u8; ID_LEN / 2] = meshd_types::unhex(root).unwrap_or_default();
    Ok(SerialNumber::from_slice(&[[SERIAL_MARK].as_slice(), &root, &random].concat()))
}

/// Returns the root of a certificate by its serial number; `None` for those of the first release.
pub fn signed_under(serial: &str) -> Option<&str> {
    let is_ours = serial.len() == 2 * (1 + SERIAL_RANDOM) + ID_LEN && serial.starts_with("4d");
    is_ours.then(|| serial.get(2..2 + ID_LEN)).flatten()
}
