//! A UDP packet as an Ethernet frame, for a client that has no address yet.

use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
/// Longest payload of an IPv4 UDP packet, in bytes.
const MAX_PAYLOAD: usize = 65_535 - IP - UDP;
const TTL: u8 = 64;
const PROTOCOL_UDP: u8 = 17;

/// Returns the frame; `None` if the payload is too long.
pub fn udp_frame(
    from: (MacAddr, SocketAddrV4),
    to: (MacAddr, SocketAddrV4),
    payload: &[u8],
) -> Option<Vec<u8>> {
    if payload.len() > MAX_PAYLOAD {
        return None;
    }
    let udp_length = u16::try_from(UDP + payload.len()).ok()?;
    let ip_length = u16::try_from(IP + UDP + payload.len()).ok()?;
    let mut frame = Vec::with_capacity(ETHERNET + usize::from(ip_length));
    frame.extend(to.0.0);
    frame.extend(from.0.0);
    frame.extend([0x08, 0x00]);
    frame.extend(ip_header(ip_length, *from.1.ip(), *to.1.ip()));
    for number in [from.1.port(), to.1.port(), udp_length, 0] {
        frame.extend(number.to_be_bytes());
    }
    frame.extend(payload);
    let mut pseudo = Vec::with_capacity(12);
    pseudo.extend(from.1.ip().octets());
    pseudo.extend(to.1.ip().octets());
    pseudo.extend([0, PROTOCOL_UDP]);
    pseudo.extend(udp_length.to_be_bytes());
    let sum = checksum(sum(&pseudo) + sum(frame.get(ETHERNET + IP..)?));
    // Zero means "no checksum" (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    frame.get_mut(ETHERNET + IP + 6..ETHERNET + IP + 8)?.copy_from_slice(&sum.to_be_bytes());
    Some(frame)
}

fn ip_header(length: u16, from: Ipv4Addr, to: Ipv4Addr) -> [u8; IP] {
    let [high, low] = length.to_be_bytes();
    let ([a, b, c, d], [e, f, g, h]) = (from.octets(), to.octets());
    // Version and length, service, length, identification, do not fragment, life, protocol,
    // checksum, addresses.
    let mut header =
        [0x45, 0, high, low, 0, 0, 0x40, 0, TTL, PROTOCOL_UDP, 0, 0, a, b, c, d, e, f, g, h];
    let [high, low] = checksum(sum(&header)).to_be_bytes();
    (header[10], header[11]) = (high, low);
    header
}

/// Returns the sum of 16-bit words (RFC 1071), padded with a zero byte.
fn sum(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    pairs.iter().fold(last, |sum, pair| sum + u32::from(u16::from_be_bytes(*pair)))
}

fn checksum(mut sum: u32) -> u16 {
    while let Some(carry) = Some(sum >> 16).filter(|carry| *carry > 0) {
        sum = (sum & 0xffff) + carry;
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SERVER: (MacAddr, SocketAddrV4) =
        (MacAddr([2, 0, 0, 0, 0, 1]), SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 67));
    const CLIENT: (MacAddr, SocketAddrV4) =
        (MacAddr([2, 0, 0, 0, 0, 2]), SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 100), 68));

    #[test]
    fn udp_frame_matches_rfc_791_and_768() {
        // 10.77.0.1:67 > 10.77.0.100:68 "hi!", computed by hand from RFC 791 and RFC 768.
        let frame = udp_frame(SERVER, CLIENT, b"hi!").expect("it fits");
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let (ethernet, rest) = hex.split_at(28);
        assert_eq!(ethernet, "0200000000020200000000010800");
        let (ip, udp) = rest.split_at(40);
        assert_eq!(ip, "4500001f00004000401125d00a4d00010a4d0064");
        assert_eq!(udp, "00430044000b60e9686921");
    }

    proptest! {
        /// The sum of all words including the checksum is all ones (RFC 1071).
        #[test]
        fn udp_frame_checksums_verify(payload in proptest::collection::vec(any::<u8>(), 0..700)) {
            let frame = udp_frame(SERVER, CLIENT, &payload).expect("it fits");
            let ip = &frame[14..34];
            prop_assert_eq!(checksum(sum(ip)), 0);
            let length = u32::try_from(frame.len() - 34).expect("short");
            let pseudo = sum(&ip[12..20]) + 17 + length;
            prop_assert_eq!(checksum(pseudo + sum(&frame[34..])), 0);
            prop_assert_eq!(&frame[42..], &payload[..]);
        }
    }

    #[test]
    fn oversized_payload_gets_no_frame() {
        assert!(udp_frame(SERVER, CLIENT, &vec![0; MAX_PAYLOAD]).is_some());
        assert!(udp_frame(SERVER, CLIENT, &vec![0; MAX_PAYLOAD + 1]).is_none());
    }
}
