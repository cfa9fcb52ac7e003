//! The masquerade rule of the private network, an nftables table set by netlink: small images have no `nft`. `nft list table ip meshd-nat`
//! shows it.

use super::netlink::{
    APPEND, CREATE, DELETE_TABLE, IPV4, NEW_CHAIN, NEW_RULE, NEW_TABLE, attribute, commit, marks, nested, text,
};
use std::{io, net::Ipv4Addr};

/// Name of the table and its chain.
const TABLE: &str = "meshd-nat";
const CHAIN: &str = "postrouting";

/// Replaces the table atomically.
///
/// # Errors
/// Error of the kernel.
pub fn masquerade(subnet: Ipv4Addr, bits: u8, bridge: &str) -> io::Result<()> {
    let name = attribute(1, &text(TABLE));
    let hook = [attribute(1, &4_u32.to_be_bytes()), attribute(2, &100_u32.to_be_bytes())].concat();
    let chain = [attribute(1, &text(TABLE)), attribute(3, &text(CHAIN)), nested(4, &hook), attribute(7, &text("nat"))];
    commit(&[
        // Creating the table first makes its deletion succeed.
        (IPV4, NEW_TABLE, CREATE, name.clone()),
        (IPV4, DELETE_TABLE, 0, name.clone()),
        (IPV4, NEW_TABLE, CREATE, name),
        (IPV4, NEW_CHAIN, CREATE, chain.concat()),
        (IPV4, NEW_RULE, CREATE | APPEND, rule(subnet, bits, bridge)),
    ])
}

/// Deletes the table.
#[cfg(test)]
pub fn remove() -> io::Result<()> {
    let name = attribute(1, &text(TABLE));
    commit(&[(IPV4, NEW_TABLE, CREATE, name.clone()), (IPV4, DELETE_TABLE, 0, name)])
}

/// Returns whether the rule matches what [`masquerade`] writes.
///
/// # Errors
/// Error of the kernel.
pub fn is_there(subnet: Ipv4Addr, bits: u8, bridge: &str) -> io::Result<bool> {
    Ok(marks(IPV4, TABLE, Some(CHAIN))? == [mark(subnet, bits, bridge)])
}

/// Fingerprint of the rule, stored in its user data.
fn mark(subnet: Ipv4Addr, bits: u8, bridge: &str) -> Vec<u8> {
    text(&format!("{subnet}/{bits} not to {bridge}"))
}

/// `ip saddr SUBNET oifname != BRIDGE masquerade`.
fn rule(subnet: Ipv4Addr, bits: u8, bridge: &str) -> Vec<u8> {
    let number = |kind: u16, value: u32| attribute(kind, &value.to_be_bytes());
    let data = |kind: u16, value: &[u8]| nested(kind, &attribute(1, value));
    let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
    // Loads the source address: 4 bytes at offset 12 of the network header.
    let source = [number(1, 1), number(2, 1), number(3, 12), number(4, 4)].concat();
    let masked = [number(1, 1), number(2, 1), number(3, 4), data(4, &mask.to_be_bytes()), data(5, &[0; 4])].concat();
    let is_ours = [number(1, 1), number(2, 0), data(3, &subnet.octets())].concat();
    let leaves_by = [number(1, 1), number(2, 7)].concat();
    let mut padded = [0; 16];
    padded.iter_mut().zip(bridge.bytes()).for_each(|(place, byte)| *place = byte);
    let not_bridge = [number(1, 1), number(2, 1), data(3, &padded)].concat();
    let expression = |name: &str, body: &[u8]| nested(1, &[attribute(1, &text(name)), nested(2, body)].concat());
    let expressions = [
        expression("payload", &source),
        expression("bitwise", &masked),
        expression("cmp", &is_ours),
        expression("meta", &leaves_by),
        expression("cmp", &not_bridge),
        expression("masq", &[]),
    ];
    [
        attribute(1, &text(TABLE)),
        attribute(2, &text(CHAIN)),
        nested(4, &expressions.concat()),
        attribute(7, &mark(subnet, bits, bridge)),
    ]
    .concat()
}
