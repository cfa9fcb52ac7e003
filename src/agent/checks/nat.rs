//! Checks the private network of VMs: bridge, address, forwarding, masquerade, DHCP, and a
//! connection to the central node (DR-11).

use super::{Context, fail, pass, skip, unproven};
use crate::networks::private_network;
use meshd_proto::Check;
use std::net::SocketAddrV4;

pub fn nat(context: &Context) -> Check {
    const NAME: &str = "nat";
    const REMEDY: &str = "the agent repairs the network every 15 s: see its log; the variable kvm_nat_pool sets the pool";
    let Some(spec) = private_network(&context.tree) else {
        return skip(NAME, "the profile has no private network");
    };
    let bridge = &spec.bridge;
    let central = SocketAddrV4::new(context.config.central, context.config.port);
    match context.probe.private_network(&spec, central) {
        Some(Ok(gateway)) => {
            let detail = format!("{bridge} has {gateway}; its DHCP server and {central} answer");
            pass(NAME, detail)
        }
        Some(Err(error)) => fail(NAME, format!("{bridge}: {error}"), REMEDY),
        None => unproven(NAME, format!("cannot test {bridge}"), REMEDY),
    }
}
