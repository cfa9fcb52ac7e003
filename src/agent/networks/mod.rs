//! Networks of a node: the private network that it makes for VMs, and the firewalls of its guests
//! and users (NW-6, NW-8). The variable `kvm_nat` of the overlay `kvm-host` enables the private
//! network: a bridge with an address of the node, a DHCP server with an address for each VM, and
//! masquerade. [`meshd_proto::NetworkSpec`] describes a network.
//!
//! | module | content |
//! | --- | --- |
//! | `settings` | the private network that the overlay enables, and its subnet |
//! | `drift` | finds missing parts: bridge, address, forwarding, masquerade |
//! | `dhcp` | DHCP server of the network; pure |
//! | [`firewall`] | nftables: what guests and users may send; masquerade |
//! | [`links`] | network interfaces: bridges, addresses, TAP devices |
//! | `probe` | tests the network as a guest would use it |
//! | `supervisor` | repairs drift, serves DHCP |

mod dhcp;
mod drift;
pub mod firewall;
pub mod links;
mod supervisor;
mod probe;
mod settings;

pub use drift::MissingPart;
pub use settings::{choose_subnet, private_network};
pub use supervisor::start;

use super::system::Tree;
use meshd_proto::NetworkSpec;
use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Client MAC address of the DHCP test (locally administered). The server assigns it the node's
/// address.
pub const PROBE_MAC: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x01]);

/// Tests a network that the node makes: state, DHCP, and a connection from it to `central`. Returns
/// the node's address in the network, or the part that failed.
pub fn check(tree: &Tree, spec: &NetworkSpec, central: SocketAddrV4) -> Result<Ipv4Addr, String> {
    let subnet =
        choose_subnet(tree, spec).ok_or("every subnet of the pool overlaps a route of the node")?;
    let missing = drift::missing(tree, spec, subnet);
    if !missing.is_empty() {
        return Err(format!("missing: {}", drift::list(&missing)));
    }
    match probe::dhcp_answers(&spec.bridge, subnet) {
        Ok(true) => {}
        Ok(false) => return Err("the DHCP server does not answer".to_owned()),
        Err(error) => return Err(format!("cannot test the DHCP server: {error}")),
    }
    probe::connects(subnet.gateway(), central).map_err(|error| {
        format!("{central} does not answer packets from the private network: {error}")
    })?;
    Ok(subnet.gateway())
}
