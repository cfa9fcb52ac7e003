//! Parses an IPv4 packet as a TCP segment (RFC 791, RFC 9293), as far as its connection, also behind
//! nested priority tags (IEEE 802.1Q). Performs no I/O and accepts any input.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Protocol number of TCP.
const TCP: u8 = 6;
/// EtherTypes of IPv4 and of both kinds of VLAN tags.
pub(super) const IPV4: u16 = 0x0800;
pub(super) const VLAN_TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Part of a tag that is the number of its VLAN.
pub(super) const VLAN_NUMBER: u16 = 0x0fff;
/// Minimum size of an IPv4 header, in bytes.
const IP_HEADER: usize = 20;
/// Bytes of a TCP header up to its flags.
const PORTS_AND_FLAGS: usize = 14;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Both ends of a connection. The client comes first, so that the connections of one address are
/// neighbours in an ordered map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends {
    pub(super) client: SocketAddrV4,
    pub(super) server: SocketAddrV4,
}

/// What a packet says about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A segment of a client; `opens` is true for the first one of a connection.
    Segment { ends: Ends, opens: bool },
    /// A fragment: it may belong to any connection of this address. No TCP client sends fragments,
    /// because their path MTU is known.
    Fragment { client: Ipv4Addr },
}

/// Returns the IPv4 packet of a frame, whose first tag the kernel has removed. The kernel ignores
/// any number of tags without a VLAN. `None` if the frame is of a VLAN or of another protocol, or
/// ends within its tags.
///
/// Depending on its version, the kernel reports the protocol of the tag or of the packet, so the
/// first byte decides: no IPv4 header has a length of 0, and a tag without a VLAN has these bits 0.
pub(super) fn without_priority_tags(mut frame: &[u8]) -> Option<&[u8]> {
    let mut is_tag = frame.first()? & 0x0f == 0;
    while is_tag {
        let ([high, low, next @ ..], rest) = frame.split_first_chunk::<4>()?;
        let next = u16::from_be_bytes(*next);
        is_tag = VLAN_TAGS.contains(&next);
        if u16::from_be_bytes([*high, *low]) & VLAN_NUMBER != 0 || !is_tag && next != IPV4 {
            return None;
        }
        frame = rest;
    }
    Some(frame)
}

/// Parses an IPv4 packet; `None` if it is no TCP.
pub(super) fn parse(packet: &[u8]) -> Option<Seen> {
    let header = packet.first_chunk::<IP_HEADER>()?;
    if header[0] >> 4 != 4 || header[9] != TCP {
        return None;
    }
    let client = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let server = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    // The packet has the "more fragments" flag or a fragment offset.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Some(Seen::Fragment { client });
    }
    let words = usize::from(header[0] & 0xf).max(IP_HEADER / 4);
    let tcp = packet.get(words * 4..)?.first_chunk::<PORTS_AND_FLAGS>()?;
    let ends = Ends {
        client: SocketAddrV4::new(client, u16::from_be_bytes([tcp[0], tcp[1]])),
        server: SocketAddrV4::new(server, u16::from_be_bytes([tcp[2], tcp[3]])),
    };
    Some(Seen::Segment { ends, opens: tcp[13] & (SYN | ACK) == SYN })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a SYN from 10.0.0.9:1024 to 10.0.0.1:8080.
    fn syn() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1];
        packet.extend([4, 0, 0x1f, 0x90, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, SYN, 0, 0, 0, 0, 0, 0]);
        packet
    }

    #[test]
    fn segment_is_parsed_with_its_ends_and_syn() {
        let client = "10.0.0.9:1024".parse().expect("an address");
        let ends = Ends { client, server: "10.0.0.1:8080".parse().expect("an address") };
        assert_eq!(parse(&syn()), Some(Seen::Segment { ends, opens: true }));
        let mut later = syn();
        later[33] = SYN | ACK;
        assert_eq!(parse(&later), Some(Seen::Segment { ends, opens: false }));
        let mut fragment = syn();
        fragment[6] = 0x20;
        assert_eq!(parse(&fragment), Some(Seen::Fragment { client: *client.ip() }));
        let mut udp = syn();
        udp[9] = 17;
        assert_eq!(parse(&udp), None);
        assert!((0..34).all(|length| parse(&syn()[..length]).is_none()), "cut off");
    }

    #[test]
    fn packet_is_found_behind_priority_tags_and_not_in_a_vlan() {
        let tagged = |numbers: &[u16]| {
            let mut frame = Vec::new();
            for (index, number) in numbers.iter().enumerate() {
                let next = if index + 1 == numbers.len() { IPV4 } else { 0x88a8 };
                frame.extend((0xe000 | number).to_be_bytes());
                frame.extend(next.to_be_bytes());
            }
            frame.extend(syn());
            frame
        };
        assert_eq!(without_priority_tags(&syn()), Some(&syn()[..]));
        for depth in [1, 2, 40] {
            let frame = tagged(&vec![0; depth]);
            assert_eq!(without_priority_tags(&frame), Some(&syn()[..]), "{depth}");
            assert!((0..4 * depth).all(|end| without_priority_tags(&frame[..end]).is_none()));
        }
        assert_eq!(without_priority_tags(&tagged(&[0, 5])), None);
    }

    proptest! {
        #[test]
        fn segment_from_random_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&bytes);
            let _ = without_priority_tags(&bytes);
        }
    }
}
