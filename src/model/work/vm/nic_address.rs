//! Addresses of a VM's NICs: the network in which an IP address is unique, and the addresses of
//! slots. Pure.
//!
//! | NIC | scope in which its address is unique |
//! | --- | --- |
//! | without a bridge (of an earlier release; such NICs do not run) | none |
//! | in the private network of its node | on its node, which leases the addresses there |
//! | in any other network | on the site |

use meshd_config::{MacPrefix, vm::derived_mac};
use meshd_proto::vm::Nic;
use meshd_types::{MacAddr, SystemUuid};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// The NIC addresses of a slot, for the VM that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotNic {
    pub mac: MacAddr,
    /// Address in the site's networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
}

/// Returns a placeholder for the MAC address of a slot.
pub(super) fn no_mac(uuid: SystemUuid, index: usize) -> MacAddr {
    derived_mac(&MacPrefix::default(), uuid, index, 0)
}

/// Returns the reserved address of a NIC if it must be unique on the site.
pub fn site_address(nic: &Nic) -> Option<Ipv4Addr> {
    nic.address.filter(|_| nic.network().is_some_and(|network| !network.is_private()))
}

/// Returns the reserved address of a NIC if it must be unique on its node.
pub fn private_address(nic: &Nic) -> Option<Ipv4Addr> {
    nic.address.filter(|_| nic.network().is_some_and(|network| network.is_private()))
}
