//! Certificates of a node. A node must present one of its recorded certificates.

use meshd_types::Digest;
use serde::{Deserialize, Serialize};

/// A certificate of a node. The record includes the key, because a stolen authority could copy the serial number, but not the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Certificate {
    /// Serial number in lower-case hexadecimal.
    pub serial: String,
    /// Digest of the certified public key. `None` in records of older releases, until the first link records its key.
    pub key: Option<Digest>,
}

/// Stored form of a certificate; older releases stored only the serial number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Serial(String),
    Whole { serial: String, key: Option<Digest> },
}

impl From<Stored> for Certificate {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Serial(serial) => Certificate { serial, key: None },
            Stored::Whole { serial, key } => Certificate { serial, key },
        }
    }
}

impl Certificate {
    /// Creates the record of a certificate.
    pub fn new(serial: &str, key: Digest) -> Self {
        Certificate { serial: serial.to_owned(), key: Some(key) }
    }

    /// Returns whether a presented certificate is this one.
    pub fn matches(&self, shown: &Certificate) -> bool {
        self.serial == shown.serial && (self.key.is_none() || self.key == shown.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_with_same_serial_and_other_key_does_not_match() {
        let (own, other) = (Digest::of(b"own"), Digest::of(b"other"));
        let listed = Certificate::new("4d01", own);
        assert!(listed.matches(&Certificate::new("4d01", own)));
        assert!(!listed.matches(&Certificate::new("4d01", other)) && !listed.matches(&Certificate::new("4d02", own)));
        let stored = serde_json::to_string(&listed).unwrap();
        assert_eq!(serde_json::from_str::<Certificate>(&stored).unwrap(), listed);
    }

    #[test]
    fn certificate_record_of_older_release_has_serial_without_key() {
        let listed: Certificate = serde_json::from_str("\"4d01\"").unwrap();
        assert_eq!(listed, Certificate { serial: "4d01".to_owned(), key: None });
        assert!(listed.matches(&Certificate::new("4d01", Digest::of(b"any"))));
    }
}
