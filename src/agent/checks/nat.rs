//! Tests the private network of VMs: bridge, address, forwarding, masquerade, DHCP, and an answer from beyond the node (DR-11).

use super::{Context, unproven, verdict};
use crate::nat::{BRIDGE, settings};
use meshd_proto::{Check, CheckStatus};
use std::net::SocketAddrV4;

/// Checks every part of the private network.
pub fn nat(context: &Context<'_>) -> Check {
    const NAME: &str = "nat";
    const REMEDY: &str = "the agent mends it every 15 s and logs what it cannot; the pool is the variable kvm_nat_pool";
    let Some(settings) = settings(context.tree) else {
        return verdict(NAME, CheckStatus::Skip, "the profile has no private network", "");
    };
    let central = SocketAddrV4::new(context.config.central, context.config.port);
    match context.probe.private_network(&settings, central) {
        Some(Ok(gateway)) => {
            let detail = format!("{BRIDGE} has {gateway}, its DHCP answers, and {central} answers what comes from it");
            verdict(NAME, CheckStatus::Pass, detail, "")
        }
        Some(Err(why)) => verdict(NAME, CheckStatus::Fail, format!("{BRIDGE}: {why}"), REMEDY),
        None => unproven(NAME, format!("{BRIDGE} cannot be tried"), REMEDY),
    }
}
