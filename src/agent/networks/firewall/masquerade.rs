//! The masquerade rule of a network that the node makes. `nft list table ip meshd-nat` shows it.

use super::nftables::{
    CREATE, IPV4, NEW_CHAIN, OUTPUT_NAME, append_rule, attribute, commit,
    expr::{Base, bytes_in, masquerade, not_meta},
    fingerprints, interface, nested, replace_table, text,
};
use meshd_proto::{NetworkSpec, Subnet};
use std::io;

const TABLE: &str = "meshd-nat";
const CHAIN: &str = "postrouting";

/// Replaces the table atomically by `ip saddr SUBNET oifname != BRIDGE masquerade`.
pub fn install(spec: &NetworkSpec, subnet: Subnet) -> io::Result<()> {
    let hook = [attribute(1, &4_u32.to_be_bytes()), attribute(2, &100_u32.to_be_bytes())].concat();
    let chain = [
        attribute(1, &text(TABLE)),
        attribute(3, &text(CHAIN)),
        nested(4, &hook),
        attribute(7, &text("nat")),
    ];
    let expressions = [
        bytes_in(Base::Network, 12, &subnet.network().octets(), &subnet.mask().octets()),
        not_meta(OUTPUT_NAME, &interface(spec.bridge.as_str())),
        masquerade(),
    ];
    let mut batch = replace_table(IPV4, TABLE).to_vec();
    batch.push((IPV4, NEW_CHAIN, CREATE, chain.concat()));
    batch.push(append_rule(IPV4, TABLE, CHAIN, &expressions.concat(), &fingerprint(spec, subnet)));
    commit(&batch)
}

/// Removes the rule.
#[cfg(test)]
pub fn remove() -> io::Result<()> {
    commit(&replace_table(IPV4, TABLE)[..2])
}

/// Returns whether the rule matches what [`install`] writes.
pub fn is_current(spec: &NetworkSpec, subnet: Subnet) -> io::Result<bool> {
    Ok(fingerprints(IPV4, TABLE, Some(CHAIN))? == [fingerprint(spec, subnet)])
}

fn fingerprint(spec: &NetworkSpec, subnet: Subnet) -> Vec<u8> {
    text(&format!("{subnet} not to {}", spec.bridge))
}
