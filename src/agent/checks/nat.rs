//! Does the private network of virtual machines work: bridge, address, forwarding, masquerade, and DHCP that answers (DR-11)?

use super::{Context, unproven, verdict};
use crate::{
    agent::nat::{BRIDGE, settings},
    wire::{Check, CheckStatus},
};

/// All of it is there, and its DHCP answers.
pub fn nat(context: &Context<'_>) -> Check {
    const NAME: &str = "nat";
    const REMEDY: &str = "the agent mends it every 15 s and logs what it cannot; the pool is the variable kvm_nat_pool";
    let Some(settings) = settings(context.tree) else {
        return verdict(NAME, CheckStatus::Skip, "the profile has no private network", "");
    };
    match context.probe.private_network(&settings) {
        Some(Ok(gateway)) => verdict(NAME, CheckStatus::Pass, format!("{BRIDGE} has {gateway}, its DHCP answers"), ""),
        Some(Err(why)) => verdict(NAME, CheckStatus::Fail, format!("{BRIDGE}: {why}"), REMEDY),
        None => unproven(NAME, format!("{BRIDGE} cannot be tried"), REMEDY),
    }
}
