//! The private network of VMs, and the firewalls of a node: a bridge with an address of the node, a DHCP server with an address for each VM, and masquerade (NW-6,
//! NW-8). The variable `kvm_nat` of the overlay `kvm-host` enables it.
//!
//! | module | content |
//! | --- | --- |
//! | `subnet` | chooses a subnet of the pool that no route of the node overlaps; pure |
//! | `drift` | finds missing parts: bridge, address, forwarding, masquerade |
//! | `dhcp` | DHCP server of the network; pure |
//! | `masquerade` | NAT rule: outgoing packets have the address of the node |
//! | `guest_firewall` | filters what a guest may send and reach |
//! | `user_firewall` | filters what programs of VMs and tasks may send |
//! | `netlink` | nftables messages |
//! | `probe` | tests the network as a guest would use it |
//! | `supervisor` | repairs drift, serves DHCP |

mod dhcp;
mod drift;
mod masquerade;
pub mod guest_firewall;
pub mod user_firewall;
mod supervisor;
mod netlink;
mod probe;
mod subnet;

pub use drift::{MissingPart, Settings, choose_subnet, settings};
pub use subnet::Subnet;
pub use supervisor::start;

use super::system::Tree;
use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Client MAC address of the DHCP test (locally administered). The server assigns it the node's address.
pub const PROBE_MAC: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x01]);
/// Fixed MAC address of the bridge. Without it the address would change with the ports.
const BRIDGE_MAC: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x02]);
/// Name of the bridge in specifications.
pub const BRIDGE: &str = meshd_proto::vm::PRIVATE_BRIDGE;

/// Tests the private network: state, DHCP, and a connection from it to `central`. Returns the node's address in the network, or the part
/// that failed.
pub fn check(tree: &Tree, settings: &Settings, central: SocketAddrV4) -> Result<Ipv4Addr, String> {
    let subnet = choose_subnet(tree, settings).ok_or("every subnet of the pool overlaps a route of the node")?;
    let missing = drift::missing(tree, subnet);
    if !missing.is_empty() {
        return Err(format!("missing: {}", drift::list(&missing)));
    }
    match probe::dhcp_answers(subnet) {
        Ok(true) => {}
        Ok(false) => return Err("the DHCP server does not answer".to_owned()),
        Err(error) => return Err(format!("cannot test the DHCP server: {error}")),
    }
    probe::connects(subnet.gateway(), central)
        .map_err(|error| format!("{central} does not answer packets from the private network: {error}"))?;
    Ok(subnet.gateway())
}
