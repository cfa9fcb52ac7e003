//! The switch port of a machine behind a DHCP relay.

use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr};

/// Sub-options 1 and 2 of option 82 (RFC 3046), in hexadecimal. Other sub-options differ between
/// packets of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayPort {
    /// The relay of the segment: ports of different relays may have equal IDs. `None` without a
    /// relay, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Ipv4Addr>,
    /// Agent circuit ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_id: Option<String>,
    /// Agent remote ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_id: Option<String>,
}

impl RelayPort {
    /// Returns this port with the relay of a later sight of the same port, if its own is unknown.
    pub fn with_relay_of(mut self, seen: Option<&RelayPort>) -> Self {
        let is_same = |seen: &&RelayPort| {
            (&seen.circuit_id, &seen.remote_id) == (&self.circuit_id, &self.remote_id)
        };
        self.relay = self.relay.or_else(|| seen.filter(is_same)?.relay);
        self
    }
}

/// Decodes an ID that is printable text, because many relays send an interface name
/// (isc-dhcp-relay: `eth1`). Binary IDs stay hexadecimal.
fn readable(hex: &str) -> String {
    let bytes: Option<Vec<u8>> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect();
    let text = bytes
        .filter(|bytes| bytes.iter().all(u8::is_ascii_graphic))
        .and_then(|bytes| String::from_utf8(bytes).ok());
    text.map_or_else(|| hex.to_owned(), |text| format!("`{text}`"))
}

impl fmt::Display for RelayPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |id: &Option<String>| id.as_deref().map_or_else(|| "none".to_owned(), readable);
        write!(f, "circuit ID {}, remote ID {}", shown(&self.circuit_id), shown(&self.remote_id))?;
        self.relay.map_or(Ok(()), |relay| write!(f, ", relay {relay}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circuit_id_that_is_text_is_shown_as_text() {
        let shown = |id: &str| {
            RelayPort { circuit_id: Some(id.to_owned()), ..RelayPort::default() }.to_string()
        };
        assert_eq!(shown("646f776e31"), "circuit ID `down1`, remote ID none");
        assert_eq!(shown("0004000a"), "circuit ID 0004000a, remote ID none");
        assert_eq!(shown("é"), "circuit ID é, remote ID none");
    }
}
