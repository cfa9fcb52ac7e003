//! Tests of packet parsing, packet encoding and option negotiation.

use crate::{
    negotiation::{MAX_BLOCK, MAX_WINDOW, Negotiated},
    packet::{self, Code, Mode, Packet, Request, RequestedOptions},
};
use proptest::prelude::*;
use std::time::Duration;

const NONE: RequestedOptions =
    RequestedOptions { block: None, timeout: None, size: false, window: None };

#[test]
fn request_options_are_case_insensitive() {
    let bytes =
        b"\0\x01ipxe.efi\0OcTet\0tsize\x000\0BLKSIZE\x001468\0windowsize\x004\0timeout\x003\0";
    let options =
        RequestedOptions { block: Some(1468), timeout: Some(3), size: true, window: Some(4) };
    let request = Request { name: "ipxe.efi", mode: Mode::Octet, options };
    assert_eq!(packet::parse(bytes), Some(Packet::Read(request)));
}

#[test]
fn invalid_options_are_ignored() {
    let cases: [&[u8]; 9] = [
        b"",
        b"blksize\x007\0",
        b"blksize\x0065465\0",
        b"timeout\x000\0timeout\x00256\0",
        b"windowsize\x000\0",
        b"windowsize\0+4\0blksize\x001468x\0",
        b"multicast\0\0",
        b"blksize\x001468",
        b"\0\0\0\0blksize\x001468\0",
    ];
    for options in cases {
        let bytes = [b"\0\x01a\0octet\0".as_slice(), options].concat();
        let request = Request { name: "a", mode: Mode::Octet, options: NONE };
        assert_eq!(
            packet::parse(&bytes),
            Some(Packet::Read(request)),
            "{:?}",
            String::from_utf8_lossy(options)
        );
    }
}

#[test]
fn malformed_packet_is_rejected() {
    let cases: [&[u8]; 3] = [b"", b"\0", b"\0\x04\0"];
    for bytes in cases {
        assert_eq!(packet::parse(bytes), None, "{bytes:?}");
    }
    let cases: [&[u8]; 5] =
        [b"\0\x01", b"\0\x01a\0octet", b"\0\x01\xff\0octet\0", b"\0\x07\0\0", b"\x01\0a"];
    for bytes in cases {
        assert_eq!(packet::parse(bytes), Some(Packet::Illegal), "{bytes:?}");
    }
    let long = [b"\0\x01".as_slice(), &[b'a'; 600], b"\0octet\0"].concat();
    assert_eq!(packet::parse(&long), Some(Packet::Illegal), "RFC 2347 allows 512 bytes");
}

#[test]
fn encoded_packets_match_rfcs() {
    assert_eq!(packet::data_header(0x1234), [0, 3, 0x12, 0x34]);
    assert_eq!(
        packet::option_ack([("blksize", 1468), ("tsize", 70_000)])[..],
        b"\0\x06blksize\x001468\0tsize\x0070000\0"[..]
    );
    assert_eq!(
        packet::error(Code::NotFound, "no such file")[..],
        b"\0\x05\0\x01no such file\0"[..]
    );
}

#[test]
fn negotiated_options_are_bounded_and_budget_limits_window() {
    let options =
        RequestedOptions { block: Some(9000), timeout: Some(255), size: true, window: Some(500) };
    let negotiated = Negotiated::grant(&options, usize::MAX, || 1500);
    assert_eq!(
        (negotiated.block, negotiated.window, negotiated.timeout),
        (MAX_BLOCK, MAX_WINDOW, Duration::from_secs(255))
    );
    assert_eq!(Negotiated::grant(&options, 5 * usize::from(MAX_BLOCK), || 1500).window, 5);
    assert_eq!(Negotiated::grant(&options, 0, || 1500).window, 1, "one block is always granted");
    let plain = Negotiated::grant(&NONE, usize::MAX, || panic!("a small block fits every path"));
    assert_eq!((plain.block, plain.window, plain.option_ack(&NONE, 7)), (512, 1, None));
    assert_eq!(
        (plain.blocks(0), plain.blocks(511), plain.blocks(512)),
        (1, 1, 2),
        "the last block is short or empty"
    );
}

#[test]
fn block_is_limited_to_the_mtu_of_the_path() {
    let options = RequestedOptions { block: Some(1468), ..NONE };
    for (mtu, block) in
        [(1400, 1368), (1500, 1468), (9000, 1468), (576, 544), (68, 36), (0, 8), (usize::MAX, 1468)]
    {
        assert_eq!(Negotiated::grant(&options, usize::MAX, || mtu).block, block, "{mtu}");
    }
}

proptest! {
    #[test]
    fn random_bytes_parse_to_bounded_request_or_none(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Some(Packet::Read(request)) = packet::parse(&bytes) {
            prop_assert!(bytes.len() <= 512 && !request.name.contains('\0'));
        }
    }
}
