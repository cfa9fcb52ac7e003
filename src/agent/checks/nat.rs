//! Checks the private network of VMs: bridge, address, forwarding, masquerade, DHCP, and a connection to the central node (DR-11).

use super::{Context, fail, pass, skip, unproven};
use crate::private_network::{BRIDGE, settings};
use meshd_proto::Check;
use std::net::SocketAddrV4;

pub fn nat(context: &Context) -> Check {
    const NAME: &str = "nat";
    const REMEDY: &str =
        "the agent repairs the network every 15 s: see its log; the variable kvm_nat_pool sets the pool";
    let Some(settings) = settings(&context.tree) else {
        return skip(NAME, "the profile has no private network");
    };
    let central = SocketAddrV4::new(context.config.central, context.config.port);
    match context.probe.private_network(&settings, central) {
        Some(Ok(gateway)) => {
            let detail = format!("{BRIDGE} has {gateway}; its DHCP server and {central} answer");
            pass(NAME, detail)
        }
        Some(Err(error)) => fail(NAME, format!("{BRIDGE}: {error}"), REMEDY),
        None => unproven(NAME, format!("cannot test {BRIDGE}"), REMEDY),
    }
}
