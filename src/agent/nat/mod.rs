//! The private network of a node's virtual machines: a bridge with an address of the node, DHCP with an address for each machine, and
//! the way out through the node (NW-6, NW-8). Switched on by the variable `kvm_nat` of the overlay `kvm-host`.
//!
//! | module | content |
//! | --- | --- |
//! | `subnet` | chooses a subnet of the pool that no route of the node overlaps; pure |
//! | `drift` | what is missing of bridge, address, forwarding and masquerade |
//! | `dhcp` | DHCP server of the network; pure |
//! | `masquerade` | NAT rule: packets that leave have the address of the node |
//! | `guest_firewall` | what a guest may send, and what of the node and its networks it may reach |
//! | `netlink` | nftables messages |
//! | `probe` | tests the network as a guest would use it |
//! | `supervisor` | repairs drift, serves DHCP |

mod dhcp;
mod drift;
mod masquerade;
pub mod guest_firewall;
mod supervisor;
mod netlink;
mod probe;
mod subnet;

pub use drift::{Missing, Settings, choose, settings};
pub use subnet::Subnet;
pub use supervisor::NatService;

use self::drift::ObservedNetwork;
use super::system::Tree;
use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Client MAC address of the DHCP test (locally administered); it gets the node's own address.
pub const PROBE: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x01]);
/// Fixed MAC address of the bridge: otherwise it would change with its ports.
const BRIDGE_MAC: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x02]);
/// Name of the bridge in specifications.
pub const BRIDGE: &str = meshd_proto::vm::PRIVATE_BRIDGE;

/// Tests the private network: state, DHCP, and a call to `central`, which must not see the private address. Returns the node's address in
/// it.
///
/// # Errors
/// The part that does not work.
pub fn works(tree: &Tree, settings: &Settings, central: SocketAddrV4) -> Result<Ipv4Addr, String> {
    let subnet = drift::choose(tree, settings);
    let subnet = subnet.ok_or_else(|| "every subnet of the pool overlaps a route of the node".to_owned())?;
    let missing = ObservedNetwork::look(tree, subnet).missing();
    if !missing.is_empty() {
        let words: Vec<&str> = missing.iter().map(|missing| missing.as_str()).collect();
        return Err(format!("not as it should be: {}", words.join(", ")));
    }
    match probe::dhcp_answers(subnet) {
        Ok(true) => {}
        Ok(false) => return Err("its DHCP does not answer".to_owned()),
        Err(error) => return Err(format!("its DHCP cannot be asked: {error}")),
    }
    match probe::leaves(subnet.gateway(), central) {
        Ok(()) => Ok(subnet.gateway()),
        Err(error) => Err(format!("{central} does not answer what comes from it: {error}")),
    }
}
