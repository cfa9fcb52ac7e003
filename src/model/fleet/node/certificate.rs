//! Certificates of a node. A node must present one of its recorded certificates.

use meshd_types::Digest;
use serde::{Deserialize, Serialize};

/// A certificate of a node. The record includes the key, because a stolen authority could copy the
/// serial number, but not the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Serial number in lower-case hexadecimal.
    pub serial: String,
    /// Digest of the certified public key.
    pub key: Digest,
}

impl Certificate {
    /// Creates the record of a certificate.
    pub fn new(serial: &str, key: Digest) -> Self {
        Certificate { serial: serial.to_owned(), key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_with_same_serial_and_other_key_does_not_match() {
        let own = Digest::of(b"own");
        let other = Digest::of(b"other");
        let listed = Certificate::new("4d01", own);
        assert_ne!(listed, Certificate::new("4d01", other));
        let stored = serde_json::to_string(&listed).unwrap();
        assert_eq!(serde_json::from_str::<Certificate>(&stored).unwrap(), listed);
    }
}
