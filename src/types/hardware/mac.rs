//! Ethernet addresses, written `aa:bb:cc:dd:ee:ff` in logs, files and URLs.

use crate::ParseError;
use std::{fmt, str::FromStr};

/// A 48-bit Ethernet MAC address (IEEE 802).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Parses `chaddr` of a DHCP packet. Returns `None` unless it is an Ethernet address that a
    /// machine can own.
    pub fn from_chaddr(chaddr: &[u8]) -> Option<Self> {
        let octets: [u8; 6] = chaddr.get(..6)?.try_into().ok()?;
        let mac = MacAddr(octets);
        (octets != [0; 6] && !mac.is_multicast()).then_some(mac)
    }

    /// Returns true for group addresses, which no single machine owns.
    pub fn is_multicast(&self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns the PXELINUX spelling for Alpine's `BOOTIF=`: hardware type 01, and dashes.
    pub fn bootif(&self) -> String {
        format!("01-{}", self.to_string().replace(':', "-"))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = ParseError;

    /// Accepts colons, dashes or no separator, in either case, because firmware and people write
    /// all three forms.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error =
            || ParseError::of_text(text, "is not a MAC address", "write it as aa:bb:cc:dd:ee:ff");
        let separated = |separator: char| {
            let parts: Vec<&str> = text.split(separator).collect();
            (parts.len() == 6 && parts.iter().all(|part| part.len() == 2)).then(|| parts.concat())
        };
        let digits = separated(':').or_else(|| separated('-')).unwrap_or_else(|| text.to_owned());
        crate::unhex::<6>(&digits).map(MacAddr).ok_or_else(error)
    }
}

crate::debug_as_text!(MacAddr);
crate::serde_as_text!(MacAddr);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mac_is_parsed_with_colons_hyphens_and_without_separators() {
        for text in ["52:54:00:AB:cd:01", "52-54-00-ab-cd-01", "525400abcd01"] {
            assert_eq!(
                text.parse::<MacAddr>().map(|mac| mac.to_string()),
                Ok("52:54:00:ab:cd:01".to_owned())
            );
        }
        assert_eq!(
            "52:54:00:ab:cd:01".parse::<MacAddr>().map(|mac| mac.bootif()),
            Ok("01-52-54-00-ab-cd-01".into())
        );
    }

    #[test]
    fn zero_multicast_or_short_chaddr_is_rejected() {
        assert_eq!(MacAddr::from_chaddr(&[0; 16]), None);
        assert_eq!(MacAddr::from_chaddr(&[0xff; 6]), None);
        assert_eq!(MacAddr::from_chaddr(&[2, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn text_round_trips_and_junk_never_panics(octets: [u8; 6], junk in "\\PC{0,30}") {
            prop_assert_eq!(MacAddr(octets).to_string().parse(), Ok(MacAddr(octets)));
            let _ = junk.parse::<MacAddr>();
        }
    }
}
