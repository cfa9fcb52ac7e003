//! The TLS certificate of the admin API: the operator's own, or a self-signed one that clients pin
//! by fingerprint.

use super::{NOT_BEFORE_MS, TrustError, files};
use meshd_types::{Timestamp, hex};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use std::{net::Ipv4Addr, path::Path, sync::Arc, time::Duration};

/// PEM certificate that meshd created.
const CERTIFICATE_FILE: &str = "https.pem";
/// Its private key, PKCS #8 PEM.
const KEY_FILE: &str = "https.key";
/// Lifetime of a certificate that meshd created: clients pin its fingerprint, which a renewal would
/// change.
const LIFE: Duration = Duration::from_secs(20 * 365 * 24 * 3600);

/// Certificate and key of a listener.
#[derive(Debug)]
pub struct WebIdentity {
    fingerprint: String,
    config: Arc<ServerConfig>,
}

impl WebIdentity {
    /// Reads an operator's certificate chain and its private key.
    ///
    /// # Errors
    /// Files that are unreadable, readable by others, or do not match.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TrustError> {
        let missing = |path: &Path| files::fault("read", path)(std::io::ErrorKind::NotFound.into());
        let chain = files::read(certificate)?.ok_or_else(|| missing(certificate))?;
        let text = files::read_private(key)?.ok_or_else(|| missing(key))?;
        Self::from_pem(&chain, &text)
            .map_err(|detail| TrustError::Web { path: certificate.to_owned(), detail })
    }

    /// Reads the certificate of a folder, or creates it for an address of this machine.
    ///
    /// # Errors
    /// The folder is unusable, or its files are damaged. Nothing is overwritten.
    pub fn load_or_create(
        folder: &Path,
        address: Ipv4Addr,
        now: Timestamp,
    ) -> Result<Self, TrustError> {
        files::make_folder(folder)?;
        let certificate = folder.join(CERTIFICATE_FILE);
        let key = folder.join(KEY_FILE);
        if files::read(&certificate)?.is_none() {
            let pair = KeyPair::generate().map_err(TrustError::crypto("a P-256 key"))?;
            let made = params(address, now)?
                .self_signed(&pair)
                .map_err(TrustError::crypto("a certificate"))?;
            // The certificate is written last, so its presence implies the key.
            files::write(&key, &pair.serialize_pem(), 0o600)?;
            files::write(&certificate, &made.pem(), 0o644)?;
        }
        Self::read(&certificate, &key)
    }

    fn from_pem(chain: &str, key: &str) -> Result<Self, String> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| format!("it is no certificate: {error}"))?;
        let own = chain.first().ok_or("it holds no certificate")?;
        let fingerprint = fingerprint(own);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| format!("its key is no key: {error}"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| format!("it does not belong to its key: {error}"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(WebIdentity { fingerprint, config: Arc::new(config) })
    }

    /// Returns the SHA-256 of the certificate, hexadecimal.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns a TLS configuration with version 1.3 only.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

/// Returns the SHA-256 of a certificate, hexadecimal, for comparison by people.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hex(&Sha256::digest(certificate))
}

fn params(address: Ipv4Addr, now: Timestamp) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "meshd admin API");
    params.subject_alt_names = vec![SanType::IpAddress(address.into())];
    params.not_before = Timestamp::from_millis(NOT_BEFORE_MS).to_datetime();
    params.not_after = now.after(LIFE).to_datetime();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn generated_certificate_is_reused_and_its_key_is_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("admin");
        let make = || {
            WebIdentity::load_or_create(
                &dir,
                Ipv4Addr::LOCALHOST,
                Timestamp::from_millis(1_700_000_000_000),
            )
        };
        let first = make().expect("made");
        assert_eq!(first.fingerprint(), make().expect("found").fingerprint());
        assert_eq!(first.fingerprint().len(), 64);
        let key = dir.join(KEY_FILE);
        let mode =
            |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&key), mode(&dir)), (0o600, 0o700));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("changed");
        assert!(matches!(make(), Err(TrustError::Exposed { .. })));
    }

    #[test]
    fn key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |name: &str| {
            let dir = folder.path().join(name);
            WebIdentity::load_or_create(&dir, Ipv4Addr::LOCALHOST, Timestamp::EPOCH).expect("made");
            (dir.join(CERTIFICATE_FILE), dir.join(KEY_FILE))
        };
        let ((certificate, _), (_, key)) = (make("a"), make("b"));
        let refused =
            WebIdentity::read(&certificate, &key).expect_err("they do not fit").to_string();
        assert!(refused.contains("https.pem") && refused.contains("key"), "{refused}");
    }
}
