//! Parses an IPv4 packet as a UDP datagram (RFC 791, RFC 768). Performs no I/O and accepts any
//! input.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Protocol number of UDP.
const UDP: u8 = 17;
/// Length of a UDP header, in bytes.
const UDP_HEADER: usize = 8;
/// Minimum size of an IPv4 header, in bytes.
const IP_HEADER: usize = 20;

/// One UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Sender according to the packet.
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
    pub payload: &'a [u8],
}

/// Parses an IPv4 packet; `None` if it is not a complete UDP datagram. Fragments are dropped: no
/// DHCP client sends any. Bytes after the packet are Ethernet padding. Checksums are ignored,
/// because packets of virtual interfaces have none.
pub fn parse(packet: &[u8]) -> Option<Datagram<'_>> {
    let header = packet.first_chunk::<IP_HEADER>()?;
    let version = header[0] >> 4;
    let words = usize::from(header[0] & 0xf);
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // The packet has the "more fragments" flag or a fragment offset.
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if version != 4 || header[9] != UDP || fragment {
        return None;
    }
    let udp = packet.get(..total)?.get(words.max(IP_HEADER / 4) * 4..)?;
    let ports = udp.first_chunk::<UDP_HEADER>()?;
    let length = usize::from(u16::from_be_bytes([ports[4], ports[5]]));
    let payload = udp.get(UDP_HEADER..length)?;
    let address = |at: usize| {
        header.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(Ipv4Addr::from)
    };
    let port = |at: usize| {
        ports.get(at..).and_then(|rest| rest.first_chunk::<2>()).copied().map(u16::from_be_bytes)
    };
    Some(Datagram {
        source: SocketAddrV4::new(address(12)?, port(0)?),
        destination: SocketAddrV4::new(address(16)?, port(2)?),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a packet from 10.0.0.9:68 to 255.255.255.255:67 with payload "boot" and two bytes of
    /// Ethernet padding.
    fn packet() -> Vec<u8> {
        let mut packet =
            vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9, 255, 255, 255, 255];
        packet.extend([0, 68, 0, 67, 0, 12, 0, 0]);
        packet.extend(b"boot\0\0");
        packet
    }

    #[test]
    fn datagram_is_parsed_without_ethernet_padding() {
        let packet = packet();
        let read = parse(&packet).expect("a datagram");
        assert_eq!(read.source, "10.0.0.9:68".parse().expect("an address"));
        assert_eq!(read.destination, "255.255.255.255:67".parse().expect("an address"));
        assert_eq!(read.payload, b"boot");
    }

    #[test]
    fn fragments_other_protocols_and_truncated_packets_are_refused() {
        let changed = |at: usize, byte: u8| {
            let mut packet = packet();
            packet[at] = byte;
            parse(&packet).is_none()
        };
        assert!(changed(0, 0x65), "another version");
        assert!(changed(6, 0x20), "more fragments follow");
        assert!(changed(7, 1), "a later fragment");
        assert!(changed(9, 6), "TCP");
        assert!(changed(3, 200), "longer than what came");
        assert!(changed(25, 200), "a datagram longer than its packet");
        assert!(changed(25, 3), "a datagram shorter than its header");
        assert!((0..31).all(|length| parse(&packet()[..length]).is_none()), "cut off");
    }

    proptest! {
        #[test]
        fn datagram_from_random_bytes_stays_in_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(read) = parse(&bytes) {
                prop_assert!(read.payload.len() + UDP_HEADER + IP_HEADER <= bytes.len());
            }
        }
    }
}
