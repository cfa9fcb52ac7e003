//! The SMBIOS system UUID, in the byte order that Linux prints.
//!
//! SMBIOS (DSP0134, 7.2.1) stores the first three fields little-endian. Linux and iPXE print the
//! text form. DHCP option 97 (RFC 4578, 2.3) contains the raw bytes, so the parser swaps these
//! fields back. Observed with OVMF and iPXE.

use crate::ParseError;
use std::{fmt, str::FromStr};

/// A system UUID; byte 0 is the first one of the text form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SystemUuid(pub [u8; 16]);

/// UUIDs that vendors ship on more than one machine.
const PLACEHOLDERS: [SystemUuid; 4] = [
    // AMI Aptio default; observed on Supermicro, ASRock, Gigabyte and many white boxes.
    SystemUuid([
        0x03, 0x00, 0x02, 0x00, 0x04, 0x00, 0x05, 0x00, 0x00, 0x06, 0x00, 0x07, 0x00, 0x08, 0x00,
        0x09,
    ]),
    // The AMI Aptio default on boards that do not swap the first three fields.
    SystemUuid([
        0x00, 0x02, 0x00, 0x03, 0x00, 0x04, 0x00, 0x05, 0x00, 0x06, 0x00, 0x07, 0x00, 0x08, 0x00,
        0x09,
    ]),
    // "12345678-1234-5678-90ab-cddeefaabbcc": default of the reference BIOS of several single-board
    // makers.
    SystemUuid([
        0x12, 0x34, 0x56, 0x78, 0x12, 0x34, 0x56, 0x78, 0x90, 0xab, 0xcd, 0xde, 0xef, 0xaa, 0xbb,
        0xcc,
    ]),
    // "fefefefe-..." with zeros at the end: default of MSI consumer boards.
    SystemUuid([
        0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe,
        0xfe,
    ]),
];

impl SystemUuid {
    /// Makes a UUID of version 4 (RFC 9562) from random bytes.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        SystemUuid(bytes)
    }

    /// Parses DHCP option 97: a type byte 0, then the UUID with its first three fields
    /// byte-swapped. Returns `None` for any other form.
    pub fn from_option97(data: &[u8]) -> Option<Self> {
        let (&kind, raw) = data.split_first()?;
        let mut bytes: [u8; 16] = raw.try_into().ok()?;
        if kind != 0 {
            return None;
        }
        swap_fields(&mut bytes);
        Some(SystemUuid(bytes))
    }

    /// Encodes DHCP option 97, the inverse of [`SystemUuid::from_option97`].
    pub fn to_option97(self) -> [u8; 17] {
        let mut bytes = self.0;
        swap_fields(&mut bytes);
        let mut out = [0; 17];
        out[1..].copy_from_slice(&bytes);
        out
    }

    /// Returns true for vendor placeholders instead of a unique UUID: all bytes equal, or a known
    /// default.
    pub fn is_placeholder(&self) -> bool {
        self.0.iter().all(|byte| *byte == self.0[0]) || PLACEHOLDERS.contains(self)
    }
}

fn swap_fields(bytes: &mut [u8; 16]) {
    bytes[0..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
}

impl fmt::Display for SystemUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = crate::hex(&self.0);
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl FromStr for SystemUuid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hint = "write it as 01020304-0506-0708-090a-0b0c0d0e0f10";
        let error = || ParseError::of_text(text, "is not a UUID", hint);
        let parts: Vec<&str> = text.trim().split('-').collect();
        let shape: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        if shape != [8, 4, 4, 4, 12] {
            return Err(error());
        }
        crate::unhex(&parts.concat()).map(SystemUuid).ok_or_else(error)
    }
}

crate::debug_as_text!(SystemUuid);
crate::serde_as_text!(SystemUuid);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uuid_of_option_97_equals_text_form() {
        let wire = [0, 4, 3, 2, 1, 6, 5, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16];
        let uuid = SystemUuid::from_option97(&wire);
        assert_eq!(
            uuid.map(|uuid| uuid.to_string()),
            Some("01020304-0506-0708-090a-0b0c0d0e0f10".to_owned())
        );
        assert_eq!(uuid.map(SystemUuid::to_option97), Some(wire));
    }

    #[test]
    fn placeholder_uuid_is_detected_in_both_byte_orders() {
        for text in ["03000200-0400-0500-0006-000700080009", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
        {
            let uuid: SystemUuid = text.parse().expect("a UUID");
            assert!(uuid.is_placeholder(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn uuid_round_trips_as_option_97_and_text_and_junk_never_panics(bytes: [u8; 16], junk: Vec<u8>, text in "\\PC{0,50}") {
            let uuid = SystemUuid(bytes);
            prop_assert_eq!(SystemUuid::from_option97(&uuid.to_option97()), Some(uuid));
            prop_assert_eq!(uuid.to_string().parse(), Ok(uuid));
            prop_assert_eq!(uuid.to_string().to_uppercase().parse(), Ok(uuid));
            let _ = SystemUuid::from_option97(&junk);
            let _ = text.parse::<SystemUuid>();
        }
    }
}
