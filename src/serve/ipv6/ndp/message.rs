//! Router solicitation and advertisement (ICMPv6). The kernel handles the checksum (RFC 3542
//! section 3.1). No I/O.

/// Router Solicitation (RFC 4861 section 4.1).
const SOLICITATION: u8 = 133;
/// Type, code, checksum and four reserved bytes.
const HEADER: usize = 8;

/// Router Advertisement (RFC 4861 section 4.2): no hop limit, no flags, a lifetime of 0 s, no times
/// and no options.
pub const ADVERTISEMENT: [u8; 16] = [134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Returns true for a valid solicitation (RFC 4861 section 6.1.1). The caller checks its sender.
pub fn is_solicitation(packet: &[u8]) -> bool {
    match packet {
        [SOLICITATION, 0, ..] => packet.get(HEADER..).is_some_and(options_are_whole),
        _ => false,
    }
}

/// Returns true if all options are complete. The second byte of each option is its length in units
/// of 8 bytes, at least 1.
fn options_are_whole(mut options: &[u8]) -> bool {
    while let [_, units, ..] = options {
        match options.get(usize::from(*units) * 8..) {
            Some(rest) if *units > 0 => options = rest,
            _ => return false,
        }
    }
    options.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn router_solicitation_is_recognized_with_and_without_options() {
        let plain = [133, 0, 0x7b, 0x1d, 0, 0, 0, 0];
        assert!(is_solicitation(&plain));
        // iPXE sends this option: type 1, one unit.
        let with_address = [&plain[..], &[1, 1, 0x52, 0x54, 0, 1, 2, 3]].concat();
        assert!(is_solicitation(&with_address));
    }

    #[test]
    fn malformed_solicitation_is_rejected() {
        let whole = [133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0];
        for length in (0..whole.len()).filter(|length| *length != 8) {
            assert!(!is_solicitation(&whole[..length]), "{length}");
        }
        assert!(
            !is_solicitation(&[133, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            "an option of length 0"
        );
        assert!(!is_solicitation(&ADVERTISEMENT), "our own answer is no question");
        assert!(!is_solicitation(&[133, 1, 0, 0, 0, 0, 0, 0]), "code 1");
    }

    proptest! {
        #[test]
        fn random_bytes_are_classified_without_panic(packet in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(!is_solicitation(&packet) || (packet.len() >= HEADER && packet.len() % 8 == 0));
        }
    }
}
