//! Checks the network: the default gateway must answer.

use super::{Context, pass, unproven, warn};
use meshd_proto::Check;
use std::net::Ipv4Addr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    address: Ipv4Addr,
    interface: String,
}

/// Checks that the gateway of the default route answers.
pub fn network(context: &Context<'_>) -> Check {
    const NAME: &str = "network";
    const REMEDY: &str = "check [dhcp].router of the site, and the gateway";
    let table = context.tree.read("/proc/net/route").unwrap_or_default();
    let Some(gateway) = table.lines().skip(1).find_map(gateway) else {
        return pass(NAME, "no default route: the lease names no router");
    };
    let name = format!("{} ({})", gateway.address, gateway.interface);
    match context.probe.neighbour_answers(gateway.address) {
        Some(true) => pass(NAME, format!("the default gateway {name} answers")),
        Some(false) => {
            let detail = format!("the default gateway {name} does not answer; other networks are unreachable");
            warn(NAME, detail, REMEDY)
        }
        None => unproven(NAME, format!("cannot test the default gateway {name}"), REMEDY),
    }
}

/// `eth0 00000000 0101A8C0 0003 0 0 0 00000000 ...`: addresses in this machine's byte order; flag 2 means gateway.
fn gateway(line: &str) -> Option<Gateway> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
    let (destination, via, flags, mask) = (number(1)?, number(2)?, number(3)?, number(7)?);
    let is_default = destination == 0 && mask == 0 && flags & 2 != 0 && via != 0;
    is_default.then(|| Gateway { address: Ipv4Addr::from(via.to_ne_bytes()), interface: fields[0].to_owned() })
}
