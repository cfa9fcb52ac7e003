//! What must hold for any bytes that stage 1 reads from network and initramfs. The first byte
//! selects the parser.

use crate::{
    alpine::{self, BootUrls, missing_packages},
    config,
    fetch::ResponseHead,
    modules::{ModuleIndex, matches},
    network::{DhcpClient, DhcpStep},
    overlay::Member,
    root::tether::{self, REQUEST},
};
use meshd_types::MacAddr;
use std::time::Duration;

/// Panics when a promise is broken.
pub fn check_invariants(bytes: &[u8]) {
    let Some((selector, rest)) = bytes.split_first() else { return };
    match selector % 7 {
        0 => drop(config::parse(rest)),
        1 => {
            if let Ok(Some((_, end))) = ResponseHead::parse(rest) {
                assert!(end <= rest.len(), "no more than came");
            }
        }
        2 => dhcp(rest),
        3 => {
            let text = String::from_utf8_lossy(rest);
            let (pattern, alias) = text.split_once('\0').unwrap_or((&text, ""));
            let _ = matches(pattern, alias);
            let index = ModuleIndex::parse(pattern, alias);
            assert!(index.load_order("a").len() <= pattern.lines().count());
        }
        4 => {
            let Some((kind, path)) = rest.split_first() else { return };
            if let Ok(member) = Member::new(path, tar::EntryType::new(*kind), Some(path)) {
                let (Member::File(path) | Member::Folder(path) | Member::Link(path, _)) = member;
                assert!(!path.relative().split('/').any(|part| matches!(part, "" | "." | "..")));
            }
        }
        6 => mesh_init(rest),
        _ => {
            let _ = tether::family_id(rest);
            if let Some(request) = rest.first_chunk::<REQUEST>() {
                let _ = tether::parse_request(request);
            }
        }
    }
}

/// The configuration of mesh-init, a URL, or a list of packages and a database of apk.
fn mesh_init(bytes: &[u8]) {
    drop(alpine::parse(bytes));
    let text = String::from_utf8_lossy(bytes);
    if let Some(urls) = BootUrls::from_modloop(&text) {
        assert_eq!(urls.failed.server(), urls.modloop.server(), "reports go to the same server");
    }
    let (wanted, database) = text.split_once('\0').unwrap_or((&text, ""));
    let missing = missing_packages(wanted, database);
    assert!(missing.len() <= wanted.split_ascii_whitespace().count() + database.lines().count());
}

/// Packets, each after its length. A lease needs two of them: an offer and its acknowledgement.
fn dhcp(bytes: &[u8]) {
    let zero = Duration::ZERO;
    let mut client = DhcpClient::new(MacAddr([2, 0, 0, 0, 0, 7]), 0, zero);
    let mut rest = bytes;
    while let [length, after @ ..] = rest {
        let (packet, after) = after.split_at(after.len().min(usize::from(*length) * 2));
        client.receive(packet, zero);
        if let DhcpStep::Bound(lease) = client.step(zero) {
            assert!(!lease.address.is_unspecified() && (1..=32).contains(&lease.prefix));
        }
        rest = after;
    }
}
