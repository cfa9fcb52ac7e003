//! The site's certificate authority: a root that nodes trust, and an issuer that signs
//! certificates.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `certificates` | makes the keys and certificates of roots, issuers and nodes |
//! | `folder` | the folder of the certificate authority, and the rotation of its root |
//! | `tls` | TLS configuration of the agent API |
//!
//! The root's key signs only issuers. A node is verified by the issuers, never by a root, so no
//! other certificate of a root identifies a node. During a rotation both roots are trusted, and the
//! agent listener presents its issuer under both, so that each node can verify it.

mod certificates;
mod folder;
mod tls;

pub use certificates::signed_under;

use self::folder::{BUNDLE, Folder, MANIFEST, Manifest, Retiring};
use super::{Peer, TrustError, files, peer::NODE_URI};
use certificates::leaf_params;
use meshd_types::{Digest, NodeId, Timestamp, hex};
use rcgen::{
    Certificate, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SanType, SerialNumber,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Lifetime of a node's certificate. The agent renews it at half of its lifetime.
pub const NODE_CERT_LIFE: Duration = Duration::from_secs(14 * DAY_S);
/// Longest time that a root is trusted after its replacement.
pub const MAX_GRACE: Duration = Duration::from_secs(366 * DAY_S);
/// Maximum number of trusted roots, the active one included. A TLS handshake contains a certificate
/// for each.
pub const MAX_ROOTS: usize = 8;
/// Default time that a root is trusted after its replacement: the lifetime of a certificate that
/// was issued under it.
pub const GRACE: Duration = NODE_CERT_LIFE;
const DAY_S: u64 = 86_400;

/// Signs and verifies node certificates. Immutable: a rotation creates another one.
pub struct CertificateAuthority {
    dir: PathBuf,
    site_name: String,
    manifest: Manifest,
    issuer: Issuer<'static, KeyPair>,
    roots_pem: String,
    /// Accepted signers. Certificates of former ones pass the handshake, too, and are refused after
    /// it.
    accepted: Vec<CertificateDer<'static>>,
    node_life: Duration,
    server: Arc<ServerConfig>,
}

/// An issued certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub certificate_pem: String,
    /// Serial number, lower-case hexadecimal.
    pub serial: String,
    /// Digest of the certified public key.
    pub key: Digest,
    /// Time of expiry.
    pub not_after: Timestamp,
}

impl Issued {
    /// Returns the response to the agent.
    pub fn response(&self, now: Timestamp) -> meshd_proto::EnrolResponse {
        let life_s = self.not_after.since(now).as_secs();
        meshd_proto::EnrolResponse { certificate_pem: self.certificate_pem.clone(), life_s }
    }
}

/// A root of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootState {
    /// Name: the beginning of the digest of its public key.
    pub root: String,
    /// End of trust; `None` for the active one.
    pub until: Option<Timestamp>,
    /// Whether its private key is in the state folder.
    pub has_key: bool,
}

impl CertificateAuthority {
    /// Opens the authority in a folder, or creates it. Takes over that of the first release.
    ///
    /// # Errors
    /// Files that are unreadable, readable by others, or inconsistent. Nothing is overwritten.
    pub fn load_or_create(dir: &Path, site_name: &str, now: Timestamp) -> Result<Self, TrustError> {
        files::make_folder(dir)?;
        let folder = Folder(dir);
        let manifest = match folder.manifest()? {
            Some(mut manifest) => {
                if manifest.bound_times(now) {
                    folder.write(&manifest, now)?;
                }
                manifest
            }
            None if dir.join(BUNDLE).exists() => {
                return Err(TrustError::damaged(&dir.join(MANIFEST), "it is missing"));
            }
            None => folder.create_first(site_name, now)?,
        };
        Self::read(dir, site_name, manifest, now)
    }

    fn read(
        dir: &Path,
        site_name: &str,
        manifest: Manifest,
        now: Timestamp,
    ) -> Result<Self, TrustError> {
        let folder = Folder(dir);
        let active = &manifest.active;
        // The key is not used between two rotations, but still must not be readable by others.
        files::read_private(&folder.root_key(active))?;
        let key_path = folder.issuer_key(active);
        let path = folder.issuer_pem(active);
        let key = files::read_private(&key_path)?
            .ok_or_else(|| TrustError::damaged(&key_path, "it is missing"))?;
        let issuer_pem = folder.must_read(&path)?;
        let (der, issuer) = certificates::read(&issuer_pem, &key)
            .map_err(|invalid| invalid.in_files(&key_path, &path))?;
        let mut chain = vec![der.clone()];
        let mut accepted = vec![der];
        for old in manifest.trusted(now) {
            let cross = folder.cross_pem(active, &old.root);
            chain.push(certificate(&cross, &folder.must_read(&cross)?)?);
            accepted.push(signer(&folder, &old.root)?);
        }
        let former = manifest.untrusted(now).filter_map(|root| signer(&folder, root).ok());
        let roots_pem = folder.bundle(&manifest, now)?;
        folder.write_bundle(&roots_pem)?;
        let signers = accepted.iter().cloned().chain(former).collect::<Vec<_>>();
        let server = tls::server_config(&issuer, active, chain, signers, now)?;
        let dir = dir.to_owned();
        let site_name = site_name.to_owned();
        let node_life = NODE_CERT_LIFE;
        Ok(CertificateAuthority {
            dir,
            site_name,
            manifest,
            issuer,
            roots_pem,
            accepted,
            node_life,
            server,
        })
    }

    /// Sets another lifetime of node certificates, for tests.
    #[must_use]
    pub fn with_node_life(self, node_life: Duration) -> Self {
        CertificateAuthority { node_life, ..self }
    }

    /// Creates a new root and issuer, and returns the new authority. The old root is trusted for a
    /// grace time, in which both sides learn both roots. Without grace, its certificates are
    /// refused from now on.
    ///
    /// # Errors
    /// [`TrustError::NoRootKey`] if the key of a still trusted root is absent, so that it cannot
    /// sign the new issuer. [`TrustError::TooManyRoots`] if [`MAX_ROOTS`] roots are trusted.
    pub fn rotated(&self, grace: Duration, now: Timestamp) -> Result<Self, TrustError> {
        let manifest = Folder(&self.dir).rotate(&self.manifest, &self.site_name, grace, now)?;
        let rotated = Self::read(&self.dir, &self.site_name, manifest, now)?;
        Ok(rotated.with_node_life(self.node_life))
    }

    /// Returns the authority at a later time, without roots whose grace is over; `None` if nothing
    /// has changed.
    pub fn aged(&self, then: Timestamp, now: Timestamp) -> Result<Option<Self>, TrustError> {
        let trusted = |at| self.manifest.trusted(at).map(|old| &old.root).collect::<Vec<_>>();
        if trusted(then) == trusted(now) {
            return Ok(None);
        }
        let aged = Self::read(&self.dir, &self.site_name, self.manifest.clone(), now)?;
        Ok(Some(aged.with_node_life(self.node_life)))
    }

    /// Returns every root that nodes are to trust as PEM, the active one first.
    pub fn roots_pem(&self) -> &str {
        &self.roots_pem
    }

    /// Returns the name of the root that certificates are issued under.
    pub fn active(&self) -> &str {
        &self.manifest.active
    }

    /// Returns whether a serial number is of a certificate under the active root.
    pub fn is_current(&self, serial: &str) -> bool {
        signed_under(serial) == Some(self.active())
    }

    /// Returns the trusted roots, the active one first.
    pub fn roots(&self, now: Timestamp) -> Vec<RootState> {
        let retiring =
            self.manifest.trusted(now).map(|Retiring { root, until }| (root, Some(*until)));
        let all = [(&self.manifest.active, None)].into_iter().chain(retiring);
        all.map(|(root, until)| {
            let has_key = Folder(&self.dir).root_key(root).exists();
            RootState { root: root.clone(), until, has_key }
        })
        .collect()
    }

    /// Issues a certificate for the public key of a request. Other contents of the request are
    /// ignored.
    ///
    /// # Errors
    /// [`TrustError::Request`] unless the request is P-256, self-signed as PKCS #10 requires,
    /// within [`meshd_proto::MAX_CSR`].
    pub fn issue_node(
        &self,
        csr_pem: &str,
        node: NodeId,
        now: Timestamp,
    ) -> Result<Issued, TrustError> {
        if csr_pem.len() > meshd_proto::MAX_CSR {
            return Err(TrustError::Request("it is longer than 4096 bytes"));
        }
        let request =
            CertificateSigningRequestParams::from_pem(csr_pem).map_err(|error| match error {
                rcgen::Error::InvalidCertificationRequestSignature => {
                    TrustError::Request("its signature does not fit its key")
                }
                _ => TrustError::Request(
                    "it is not a PKCS #10 request in PEM that this site can read",
                ),
            })?;
        if request.public_key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(TrustError::Request("its key is not a P-256 key"));
        }
        let not_after = now.after(self.node_life);
        let mut params = leaf_params(
            &node.to_string(),
            not_after,
            ExtendedKeyUsagePurpose::ClientAuth,
            self.active(),
        )?;
        let uri = format!("{NODE_URI}{node}")
            .try_into()
            .map_err(TrustError::crypto("a node certificate"))?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        let serial = params.serial_number.as_ref().map(SerialNumber::to_bytes).unwrap_or_default();
        let certificate: Certificate = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(TrustError::crypto("a node certificate"))?;
        let key = Digest::of(request.public_key.der_bytes());
        Ok(Issued { certificate_pem: certificate.pem(), serial: hex(&serial), key, not_after })
    }

    /// Returns the TLS configuration of the agent listener: version 1.3 only, client certificate
    /// optional. Expired certificates and those of former roots pass;
    /// [`CertificateAuthority::identify`] reports them. Sessions are not resumed, so each
    /// connection shows its certificate.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Identifies the node of a certificate that passed the handshake of
    /// [`CertificateAuthority::server_config`].
    ///
    /// # Errors
    /// [`TrustError::Certificate`] if it names none, [`TrustError::StaleAuthority`] if its root was
    /// replaced.
    pub fn identify(&self, der: &[u8], now: Timestamp) -> Result<Peer, TrustError> {
        let peer = Peer::from_der(der, now)?;
        if !tls::is_signed_by(der, &self.accepted) {
            return Err(TrustError::StaleAuthority { node: peer.node });
        }
        Ok(peer)
    }
}

/// Returns the signer of node certificates under a root: its issuer, or the root itself in the
/// first release.
fn signer(folder: &Folder<'_>, root: &str) -> Result<CertificateDer<'static>, TrustError> {
    let issuer = folder.issuer_pem(root);
    match files::read(&issuer)? {
        Some(pem) => certificate(&issuer, &pem),
        None => certificate(&folder.root_pem(root), &folder.must_read(&folder.root_pem(root))?),
    }
}

fn certificate(path: &Path, pem: &str) -> Result<CertificateDer<'static>, TrustError> {
    certificates::certificate(pem)
        .ok_or_else(|| TrustError::damaged(path, "it is not a certificate"))
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CertificateAuthority")
    }
}

#[cfg(test)]
mod tests;
