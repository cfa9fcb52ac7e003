//! Maps a verified client certificate to a node.

use super::TrustError;
use meshd_types::{Digest, NodeId, Timestamp, hex};
use std::time::Duration;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Longest remaining life of a valid node certificate. It leaves room for clocks that are corrected
/// by days.
const MAX_NODE_CERT_LIFE: Duration = Duration::from_secs(60 * 86_400);
/// Scheme of the subject alternative name that carries the node ID.
pub(super) const NODE_URI: &str = "meshd:node:";

/// A node, as its certificate identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub node: NodeId,
    /// Serial number, lower-case hexadecimal.
    pub serial: String,
    /// Digest of the certified public key, as in [`super::Issued`].
    pub key: Digest,
    /// The certificate has expired, or its end is later than any life that this site grants: it may
    /// be renewed, and nothing else.
    pub expired: bool,
}

impl Peer {
    /// Parses a certificate whose signature the handshake has verified. Accepts any bytes.
    pub(super) fn from_der(der: &[u8], now: Timestamp) -> Result<Self, TrustError> {
        let refused = TrustError::Certificate;
        let (rest, certificate) = X509Certificate::from_der(der)
            .map_err(|_| refused("it is not an X.509 certificate"))?;
        if !rest.is_empty() {
            return Err(refused("bytes follow it"));
        }
        let names =
            certificate.subject_alternative_name().map_err(|_| refused("its names are damaged"))?;
        let names =
            names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
        let mut nodes = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(NODE_URI),
            _ => None,
        });
        let (Some(text), None) = (nodes.next(), nodes.next()) else {
            return Err(refused("it does not carry exactly one meshd:node: name"));
        };
        let node = text.parse().map_err(|_| refused("its meshd:node: name is not a node ID"))?;
        let not_after = certificate.validity().not_after.timestamp();
        // A clock in the future issued the second kind. The node renews it, as an expired one.
        let expired =
            now.seconds() > not_after || not_after > now.after(MAX_NODE_CERT_LIFE).seconds();
        let key = Digest::of(&certificate.public_key().subject_public_key.data);
        Ok(Peer { node, serial: hex(certificate.raw_serial()), key, expired })
    }
}
