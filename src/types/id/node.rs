//! The node ID: eight characters derived from a machine's hardware.
//!
//! DESIGN.md defines the ID: the first 40 bits of `SHA-256("mesh-node-id/1\n" + basis)` in
//! lower-case Crockford base32. The basis is the first trustworthy one of UUID, serial triple and
//! MAC address.

use crate::{Digest, MacAddr, ParseError, SystemUuid};
use std::{collections::BTreeSet, fmt, str::FromStr};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DOMAIN: &str = "mesh-node-id/1\n";

/// Permanent ID of a machine: 40 bits, as eight characters of Crockford base32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; 5]);

/// Source of a node ID, one line of text.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Basis {
    /// The SMBIOS system UUID.
    Uuid(SystemUuid),
    /// `manufacturer|product|serial`, trimmed and lower-case.
    Serial(String),
    /// The boot NIC's MAC address, or the lowest of several MAC addresses.
    Mac(MacAddr),
}

/// Hardware identity from which the ID is derived. Read from a DHCP packet, an iPXE query, or
/// sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// SMBIOS system UUID.
    pub uuid: Option<SystemUuid>,
    /// SMBIOS system manufacturer.
    pub manufacturer: String,
    /// SMBIOS product name.
    pub product: String,
    /// SMBIOS system serial number.
    pub serial: String,
    /// MAC address of the boot NIC in the boot chain; all permanent addresses elsewhere.
    pub macs: Vec<MacAddr>,
}

/// UUIDs that a site declares untrustworthy, in addition to the known placeholders.
pub type DenyList = BTreeSet<SystemUuid>;

/// Placeholders that board makers write instead of a serial number.
const PLACEHOLDER_TEXTS: [&str; 24] = [
    "to be filled by o.e.m.",
    "to be filled by o.e.m",
    "default string",
    "system serial number",
    "system manufacturer",
    "system product name",
    "system version",
    "not specified",
    "not applicable",
    "not available",
    "unspecified",
    "unknown",
    "undefined",
    "none",
    "null",
    "n/a",
    "na",
    "oem",
    "o.e.m.",
    "invalid",
    "empty",
    "0123456789",
    "123456789",
    "1234567890",
];

/// Characters that firmware repeats to the length of a field. Four or more of any one character
/// also count as filler.
const FILLERS: &str = "0xf.-*#_ ";

/// Returns true for a placeholder instead of a serial number or name; `text` is trimmed and in
/// lower case. A placeholder neither distinguishes nor identifies machines.
pub fn is_filler(text: &str) -> bool {
    let first = text.chars().next().unwrap_or('0');
    let repeated = text.chars().all(|c| c == first);
    (repeated && (FILLERS.contains(first) || text.len() >= 4)) || PLACEHOLDER_TEXTS.contains(&text)
}

/// Returns the text trimmed and in lower case, without control characters, which could end the line
/// of the basis.
fn tidy(text: &str) -> String {
    text.trim().to_lowercase().chars().filter(|c| !c.is_control()).collect()
}

impl Hardware {
    /// Returns every possible basis of this machine, including those that a site distrusts: UUID,
    /// serial, MAC.
    pub fn bases(&self) -> impl Iterator<Item = Basis> {
        let uuid = self.trusted_uuid(&DenyList::new()).map(Basis::Uuid);
        let mac = self.macs.iter().map(|mac| Basis::Mac(*mac));
        uuid.into_iter().chain(self.serial_triple().map(Basis::Serial)).chain(mac)
    }

    /// Returns the basis of the node ID, or `None` if no identity field is known.
    pub fn basis(&self, deny: &DenyList) -> Option<Basis> {
        self.trusted_uuid(deny)
            .map(Basis::Uuid)
            .or_else(|| self.serial_triple().map(Basis::Serial))
            .or_else(|| self.macs.iter().min().copied().map(Basis::Mac))
    }

    fn trusted_uuid(&self, deny: &DenyList) -> Option<SystemUuid> {
        self.uuid.filter(|uuid| !uuid.is_placeholder() && !deny.contains(uuid))
    }

    fn serial_triple(&self) -> Option<String> {
        let parts = [&self.manufacturer, &self.product, &self.serial].map(|part| tidy(part));
        let usable = parts.iter().all(|part| !part.is_empty() && !is_filler(part));
        usable.then(|| parts.join("|"))
    }
}

impl Basis {
    /// Returns the node ID of this basis.
    pub fn node_id(&self) -> NodeId {
        let Digest(hash) = Digest::of(format!("{DOMAIN}{self}").as_bytes());
        let [a, b, c, d, e, ..] = hash;
        NodeId([a, b, c, d, e])
    }

    /// Returns true if the basis is a MAC address, because the ID then moves with the NIC.
    pub fn is_weak(&self) -> bool {
        matches!(self, Basis::Mac(_))
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Uuid(uuid) => write!(f, "uuid:{uuid}"),
            Basis::Serial(triple) => write!(f, "serial:{triple}"),
            Basis::Mac(mac) => write!(f, "mac:{mac}"),
        }
    }
}

impl FromStr for Basis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.split_once(':') {
            Some(("uuid", rest)) => rest.parse().ok().map(Basis::Uuid),
            Some(("serial", rest)) => Some(Basis::Serial(rest.to_owned())),
            Some(("mac", rest)) => rest.parse().ok().map(Basis::Mac),
            _ => None,
        };
        parsed.ok_or_else(|| format!("`{text}` is not the basis of a node ID"))
    }
}

crate::serde_as_text!(Basis);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
        let digit = |index: u32| char::from(ALPHABET[(bits >> (index * 5) & 31) as usize]);
        f.pad(&(0..8).rev().map(digit).collect::<String>())
    }
}

impl FromStr for NodeId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hint = "it is 8 characters of 0-9 and a-z without i, l, o, u (see `meshd node list`)";
        let error = || ParseError::of_text(text, "is not a node ID", hint);
        if text.len() != 8 {
            return Err(error());
        }
        let mut bits = 0u64;
        for byte in text.bytes() {
            let digit = ALPHABET.iter().position(|c| *c == byte).ok_or_else(error)?;
            bits = bits << 5 | digit as u64;
        }
        let [.., a, b, c, d, e] = bits.to_be_bytes();
        Ok(NodeId([a, b, c, d, e]))
    }
}

crate::debug_as_text!(NodeId);
crate::serde_as_text!(NodeId);

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
