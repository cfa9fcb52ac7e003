//! A prefix of MAC addresses.

use meshd_types::{MacAddr, ParseError, unhex};
use std::str::FromStr;

/// MAC prefix of QEMU.
pub(super) const QEMU: &str = "52:54:00";

/// A prefix of a MAC address: one to six whole octets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacPrefix(Vec<u8>);

impl MacPrefix {
    /// Returns true if the address has this prefix.
    pub fn fits(&self, mac: MacAddr) -> bool {
        mac.0.starts_with(&self.0)
    }

    /// Returns the octets.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Returns an address with this prefix, completed with the first octets of `rest`.
    pub fn with(&self, rest: &[u8]) -> MacAddr {
        let mut octets = [0; 6];
        octets.iter_mut().zip(self.0.iter().chain(rest)).for_each(|(octet, value)| *octet = *value);
        MacAddr(octets)
    }
}

impl FromStr for MacPrefix {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts = text.trim_end_matches([':', '-']).split([':', '-']);
        let octets: Option<Vec<u8>> = parts.map(|part| unhex(part).map(|[octet]| octet)).collect();
        octets.filter(|octets| octets.len() <= 6).map(MacPrefix).ok_or_else(|| {
            let hint = "write whole octets: \"52:54:00\"";
            ParseError::of_text(text, "is not a MAC address prefix", hint)
        })
    }
}

impl Default for MacPrefix {
    fn default() -> Self {
        QEMU.parse().expect("a valid prefix")
    }
}
