//! Private key and certificate of this node. Both are in tmpfs: they survive a restart of the
//! agent, not of the machine. The key never leaves the node.

use crate::{
    files::{self, FileError},
    link_state::Validity,
};
use meshd_proto::EnrolResponse;
use meshd_types::{Digest, NodeId};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// File of received roots in the state folder.
const ROOTS: &str = "roots.json";

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The CA certificate of the overlay.
    #[error("{} contains no CA certificate; reboot the node to get a new overlay", .0.display())]
    Authority(PathBuf),
    #[error("cannot create the key or certificate request of the node")]
    Key(#[from] rcgen::Error),
    #[error("invalid key or certificate of the node")]
    Tls(#[from] rustls::Error),
}

#[derive(Serialize, Deserialize)]
struct StoredCertificate {
    node: NodeId,
    certificate_pem: String,
    #[serde(flatten)]
    validity: Validity,
}

/// Roots that the central node sent over the link. They replace the roots of the overlay or ticket
/// that `configured` identifies; a newer overlay or ticket takes precedence.
#[derive(Serialize, Deserialize)]
struct ReceivedRoots {
    configured: Digest,
    roots_pem: String,
}

pub struct Keys {
    folder: PathBuf,
    node: NodeId,
    key: KeyPair,
    /// Digest of the roots of the overlay or ticket.
    configured_roots: Digest,
    roots_pem: String,
    roots: Arc<RootCertStore>,
    certificate: Option<Vec<CertificateDer<'static>>>,
}

impl Keys {
    /// Opens the state folder, or creates it with a new key. Returns the validity of a usable
    /// certificate; ignores an invalid one or one of another node. `configured` are the roots of
    /// the overlay or ticket; the default are the roots in `ca_file`.
    pub fn open(
        folder: &Path,
        configured: Option<&str>,
        ca_file: &Path,
        node: NodeId,
    ) -> Result<(Self, Option<Validity>), KeyError> {
        files::create_private_folder(folder)?;
        let pem = configured.map_or_else(|| files::read(ca_file), |pem| Ok(pem.to_owned()))?;
        let default_roots =
            parse_roots(&pem).ok_or_else(|| KeyError::Authority(ca_file.to_owned()))?;
        let configured_roots = Digest::of(pem.as_bytes());
        let received = received_roots(&folder.join(ROOTS), configured_roots);
        let (roots_pem, roots) = received.unwrap_or((pem, default_roots));
        let key_path = folder.join("node.key");
        let stored_key = files::read(&key_path).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
        let is_new = stored_key.is_none();
        let key = match stored_key {
            Some(key) => key,
            None => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
                files::replace(&key_path, &key.serialize_pem())?;
                key
            }
        };
        let mut keys = Keys {
            folder: folder.to_owned(),
            node,
            key,
            configured_roots,
            roots_pem,
            roots: Arc::new(roots),
            certificate: None,
        };
        let stored = files::read(&keys.certificate_path()).ok().filter(|_| !is_new);
        let stored = stored.and_then(|text| serde_json::from_str::<StoredCertificate>(&text).ok());
        let validity = stored.filter(|stored| stored.node == node).and_then(|stored| {
            keys.certificate = Some(parse_chain(&stored.certificate_pem)?);
            // Otherwise only the central node would detect a certificate of another key.
            keys.tls().ok()?;
            Some(stored.validity)
        });
        if validity.is_none() {
            keys.certificate = None;
        }
        Ok((keys, validity))
    }

    /// Creates a certificate request. The central node decides the contents of the certificate.
    pub fn request(&self) -> Result<String, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        Ok(params.serialize_request(&self.key)?.pem()?)
    }

    /// Uses a certificate and stores it. A certificate that cannot be stored is used nevertheless.
    pub fn store(&mut self, response: &EnrolResponse, validity: Validity) -> Result<(), KeyError> {
        let Some(chain) = parse_chain(&response.certificate_pem) else {
            let detail = "the central node sent no certificate".to_owned();
            return Err(FileError::Content { path: self.certificate_path(), detail }.into());
        };
        self.certificate = Some(chain);
        let certificate_pem = response.certificate_pem.clone();
        let stored = StoredCertificate { node: self.node, certificate_pem, validity };
        let text = serde_json::to_string(&stored).unwrap_or_default();
        Ok(files::replace_unsynced(&self.certificate_path(), &text)?)
    }

    /// Replaces the trusted roots.
    pub fn trust(&mut self, roots_pem: &str) -> Result<(), KeyError> {
        if roots_pem == self.roots_pem {
            return Ok(());
        }
        let path = self.folder.join(ROOTS);
        self.roots =
            Arc::new(parse_roots(roots_pem).ok_or_else(|| KeyError::Authority(path.clone()))?);
        self.roots_pem = roots_pem.to_owned();
        let received =
            ReceivedRoots { configured: self.configured_roots, roots_pem: roots_pem.to_owned() };
        Ok(files::replace_unsynced(&path, &serde_json::to_string(&received).unwrap_or_default())?)
    }

    pub fn drop_certificate(&mut self) {
        self.certificate = None;
        // A file that remains is harmless: the central node rejects the certificate again.
        let _ = fs::remove_file(self.certificate_path());
    }

    /// Returns a TLS 1.3 configuration that trusts only this site's roots and presents the
    /// certificate, if there is one.
    pub fn tls(&self) -> Result<Arc<ClientConfig>, KeyError> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(Arc::clone(&self.roots));
        let mut config = match &self.certificate {
            Some(chain) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
                config.with_client_auth_cert(chain.clone(), key)?
            }
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn certificate_path(&self) -> PathBuf {
        self.folder.join("certificate.json")
    }
}

/// Returns `None` if the text contains no valid certificate.
fn parse_roots(pem: &str) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_chain(pem)? {
        roots.add(certificate).ok()?;
    }
    Some(roots)
}

fn received_roots(path: &Path, configured: Digest) -> Option<(String, RootCertStore)> {
    let received: ReceivedRoots = serde_json::from_str(&files::read(path).ok()?).ok()?;
    let roots = parse_roots(&received.roots_pem).filter(|_| received.configured == configured)?;
    Some((received.roots_pem, roots))
}

/// Returns `None` if the text contains no valid certificate.
fn parse_chain(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    chain.ok().filter(|chain| !chain.is_empty())
}
