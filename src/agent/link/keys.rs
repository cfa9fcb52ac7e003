//! The private key of this node, which never leaves it, and its certificate. Both are in tmpfs: they survive a restart of the agent, not of
//! the machine.

use crate::{
    files::{self, FileError},
    link_state::Life,
};
use meshd_proto::EnrolResponse;
use meshd_types::{Digest, NodeId, Timestamp};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// File of learned roots in the state folder.
const ROOTS: &str = "roots.json";

/// An error of keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The CA certificate of the overlay.
    #[error("{} holds no certificate authority; reboot the node to get a fresh overlay", .0.display())]
    Authority(PathBuf),
    /// The cryptographic library.
    #[error("cannot make the node's key or request")]
    Key(#[from] rcgen::Error),
    /// TLS rejects the configuration.
    #[error("TLS does not take the node's key and certificate")]
    Tls(#[from] rustls::Error),
}

#[derive(Serialize, Deserialize)]
struct StoredCertificate {
    node: NodeId,
    certificate_pem: String,
    renew_at: Timestamp,
    expires_at: Timestamp,
}

/// Stored roots that were learned over the link. They replace the given roots beside which they were learned; a newer overlay or ticket
/// takes precedence.
#[derive(Serialize, Deserialize)]
struct Learned {
    beside: Digest,
    roots_pem: String,
}

/// Key, certificate and trusted roots.
pub struct Keys {
    folder: PathBuf,
    node: NodeId,
    key: KeyPair,
    /// Roots of the overlay or ticket.
    given: Digest,
    roots_pem: String,
    roots: Arc<RootCertStore>,
    certificate: Option<Vec<CertificateDer<'static>>>,
}

impl Keys {
    /// Opens the state folder, or makes it with a new key. Returns the validity of a usable certificate; ignores a damaged one or one of
    /// another node.
    ///
    /// `given` are the roots of the overlay or ticket; without them the roots in `ca_file` count.
    pub fn open(
        folder: &Path,
        given: Option<&str>,
        ca_file: &Path,
        node: NodeId,
    ) -> Result<(Self, Option<Life>), KeyError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|source| FileError::Write { path: folder.to_owned(), source })?;
        let given = given.map_or_else(|| files::read(ca_file), |given| Ok(given.to_owned()))?;
        let given_roots = roots(&given).ok_or_else(|| KeyError::Authority(ca_file.to_owned()))?;
        let beside = Digest::of(given.as_bytes());
        let (roots_pem, roots) = learned(&folder.join(ROOTS), beside).unwrap_or((given, given_roots));
        let key_path = folder.join("node.key");
        let old = files::read(&key_path).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
        let is_new = old.is_none();
        let key = match old {
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
            given: beside,
            roots_pem,
            roots: Arc::new(roots),
            certificate: None,
        };
        let kept = files::read(&keys.certificate_path()).ok().filter(|_| !is_new);
        let kept = kept
            .and_then(|text| serde_json::from_str::<StoredCertificate>(&text).ok())
            .filter(|kept| kept.node == node);
        let life = kept.and_then(|kept| {
            keys.certificate = Some(chain(&kept.certificate_pem)?);
            // Otherwise only the central node would detect a certificate of another key.
            keys.tls().ok()?;
            Some(Life { renew_at: kept.renew_at, expires_at: kept.expires_at })
        });
        if life.is_none() {
            keys.certificate = None;
        }
        Ok((keys, life))
    }

    /// Makes a certificate request. The central node decides the contents of the certificate.
    pub fn request(&self) -> Result<String, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        Ok(params.serialize_request(&self.key)?.pem()?)
    }

    /// Stores a certificate. It is used even if it cannot be stored.
    pub fn keep(&mut self, response: &EnrolResponse, life: Life) -> Result<(), KeyError> {
        let Some(chain) = chain(&response.certificate_pem) else {
            let detail = "the central node sent no certificate".to_owned();
            return Err(FileError::Content { path: self.certificate_path(), detail }.into());
        };
        self.certificate = Some(chain);
        let kept = StoredCertificate {
            node: self.node,
            certificate_pem: response.certificate_pem.clone(),
            renew_at: life.renew_at,
            expires_at: life.expires_at,
        };
        let text = serde_json::to_string(&kept).unwrap_or_default();
        Ok(files::replace_soon(&self.certificate_path(), &text)?)
    }

    /// Replaces the trusted roots.
    pub fn trust(&mut self, roots_pem: &str) -> Result<(), KeyError> {
        if roots_pem == self.roots_pem {
            return Ok(());
        }
        let path = self.folder.join(ROOTS);
        self.roots = Arc::new(roots(roots_pem).ok_or_else(|| KeyError::Authority(path.clone()))?);
        self.roots_pem = roots_pem.to_owned();
        let learned = Learned { beside: self.given, roots_pem: roots_pem.to_owned() };
        Ok(files::replace_soon(&path, &serde_json::to_string(&learned).unwrap_or_default())?)
    }

    /// Deletes the certificate.
    pub fn drop_certificate(&mut self) {
        self.certificate = None;
        // If the file remains, the central node rejects it again after a restart.
        let _ = fs::remove_file(self.certificate_path());
    }

    /// Returns a TLS 1.3 configuration that trusts only this site's roots and presents the certificate, if there is one.
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

/// Parses roots; `None` if there is none.
fn roots(pem: &str) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(pem)? {
        roots.add(certificate).ok()?;
    }
    Some(roots)
}

fn learned(path: &Path, beside: Digest) -> Option<(String, RootCertStore)> {
    let learned: Learned = serde_json::from_str(&files::read(path).ok()?).ok()?;
    let roots = roots(&learned.roots_pem).filter(|_| learned.beside == beside)?;
    Some((learned.roots_pem, roots))
}

/// Parses certificates; `None` if there is none.
fn chain(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    chain.ok().filter(|chain| !chain.is_empty())
}
