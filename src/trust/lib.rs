//! Credentials: capabilities, enrolment tokens, API tokens and certificates.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `api_token` | API tokens of the admin API |
//! | `authority` | the site's certificate authority: a root that nodes trust, and an issuer that signs certificates |
//! | `capability_redactor` | hides capabilities in logs of machines |
//! | `enrol_token` | enrolment tokens: a secret that buys one certificate for one node |
//! | `files` | files of keys and certificates, written atomically |
//! | `overlay_capability` | capabilities: an unguessable URL part that opens one overlay, once, for one address, for minutes |
//! | `secret_mark` | marks of secrets: a keyed digest that changes with the secret and reveals nothing |
//! | `peer` | maps a verified client certificate to a node |
//! | `verifier` | verifies client certificates in the TLS handshake |
//! | `web_certificate` | the TLS certificate of the admin API: the operator's own, or a self-signed one that clients pin by fingerprint |
//!
//! ```text
//! boot session ─▶ capability      (16 bytes, minutes)    opens one overlay, once, for one address
//! overlay      ─▶ enrolment token (32 bytes, minutes)    buys one certificate, for one node and session
//! agent's key  ─▶ certificate     (14 days)              identifies the node on the agent API
//! ```
//! Time and randomness are arguments. Only [`CertificateAuthority`] and [`MarkKey`] create keys,
//! and store them in a folder.

mod api_token;
mod authority;
mod capability_redactor;
pub mod enrol_token;
mod files;
pub mod overlay_capability;
mod peer;
mod secret_mark;
mod verifier;
mod web_certificate;

pub use api_token::{ApiToken, Role};
pub use authority::{
    CertificateAuthority, GRACE, Issued, MAX_GRACE, MAX_ROOTS, NODE_CERT_LIFE, RootState,
    signed_under,
};
pub use capability_redactor::CapabilityRedactor;
pub use enrol_token::{TokenRecord, TokenRefused};
pub use peer::Peer;
pub use secret_mark::{KEY_FILE as MARK_KEY_FILE, MarkKey};
pub use web_certificate::{WebIdentity, fingerprint};

use std::path::{Path, PathBuf};

/// `not_before` of all certificates, 2020-01-01T00:00:00Z in milliseconds: a machine with a wrong
/// clock must accept them.
const NOT_BEFORE_MS: i64 = 1_577_836_800_000;

/// Failures with keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot {operation} {}", path.display())]
    File {
        /// Verb: `read`, `write`...
        operation: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The private key may be read by others.
    #[error("{} may be read by other users (mode {mode:o})", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    /// The key of marks is damaged.
    #[error("cannot read {}: it is not a key",
            path.display())]
    Key { path: PathBuf },
    /// Files of the authority are inconsistent or damaged.
    #[error("{}: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    /// A still trusted root must sign the issuer of its successor, and its key is absent.
    #[error("cannot rotate the root: {} is missing, so nodes that trust only this root cannot verify the next one", path.display())]
    NoRootKey { path: PathBuf },
    /// Each trusted root makes the TLS handshake of nodes longer.
    #[error("cannot rotate the root: {MAX_ROOTS} roots are trusted, which is the maximum")]
    TooManyRoots {
        /// End of trust in the first of them.
        until: meshd_types::Timestamp,
    },
    /// The certificate of `[admin.https]` is not usable.
    #[error("{}: {detail}", path.display())]
    Web {
        /// The certificate's file.
        path: PathBuf,
        detail: String,
    },
    /// The certificate request is invalid.
    #[error("the certificate request is refused: {0}")]
    Request(&'static str),
    /// The certificate names no node of this site.
    #[error("the certificate names no node: {0}")]
    Certificate(&'static str),
    /// The certificate's root was replaced.
    #[error("the certificate of {node} is of an authority that was replaced")]
    StaleAuthority { node: meshd_types::NodeId },
    /// The cryptographic library failed independently of input.
    #[error("cannot make {what}")]
    Crypto {
        /// The object to be created.
        what: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

meshd_types::hints!(TrustError {
    TrustError::File { .. } => "check the permissions of the state folder";
    TrustError::Exposed { path, .. } => "run: chmod 600 {}", path.display();
    TrustError::Key { .. } => "restore it from a backup, or remove it and reboot all nodes with secrets";
    TrustError::Damaged { .. } => "restore this folder from a backup, or move the folder away: a new authority is made and every node enrols again at its next boot";
    TrustError::NoRootKey { .. } => "put it back for the rotation, or rotate with --grace 0 and reboot all nodes";
    TrustError::TooManyRoots { until } => "wait until {until}, or rotate with --grace 0 and reboot all nodes";
    TrustError::Web { .. } => "give [admin.https] a certificate and the key that belongs to it, both PEM, or neither";
    TrustError::StaleAuthority { .. } => "boot the node again, or give it a new token";
});

impl TrustError {
    /// Creates the error of a damaged file.
    fn damaged(path: &Path, detail: &str) -> Self {
        TrustError::Damaged { path: path.into(), detail: detail.into() }
    }

    fn crypto<E: std::error::Error + Send + Sync + 'static>(
        what: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| TrustError::Crypto { what, source: Box::new(source) }
    }
}
