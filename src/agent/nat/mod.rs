//! The private network of a node's virtual machines: a bridge with an address of the node, DHCP with an address for each machine, and
//! the way out through the node (NW-6, NW-8). Switched on by the variable `kvm_nat` of the overlay `kvm-host`.
//!
//! ```text
//! subnet   which one, of the pool: none that the node has a route to      pure
//! drift    what is there, and what of it is to be mended                  pure but for reading
//! dhcp     question ─▶ answer                                             pure
//! filter   the kernel's packet filter: what leaves has the node's address
//! keeper   looks again and again, mends what is not there, answers DHCP
//! ```

mod dhcp;
mod drift;
mod filter;
mod keeper;
mod subnet;

pub use drift::{Missing, Settings, settings};
pub use keeper::Keeper;

use self::{drift::Seen, subnet::Subnet};
use super::facts::Tree;
use crate::id::MacAddr;

/// Whom the doctor asks DHCP as: a MAC address of no machine (locally administered), which gets the node's own address.
pub const PROBE: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x01]);
/// Name of the bridge, which a specification writes as `bridge`.
pub const BRIDGE: &str = "mesh-nat0";

/// What is missing now; `None` where no subnet of the pool is free.
pub fn missing(tree: &Tree, settings: &Settings) -> Option<(std::net::Ipv4Addr, Vec<Missing>)> {
    let subnet = drift::choose(tree, settings)?;
    Some((subnet.gateway(), Seen::look(tree, subnet).missing()))
}

/// Asks the private network's DHCP, as a machine would; true when it answers.
pub fn dhcp_answers(tree: &Tree, settings: &Settings) -> bool {
    drift::choose(tree, settings).is_some_and(|subnet| keeper::asks(subnet).is_ok_and(|answered| answered))
}
