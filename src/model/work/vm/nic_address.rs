//! Addresses of a VM's NICs: the network in which an IP address is unique, and the addresses of
//! slots. Pure.
//!
//! | NIC | scope in which its address is unique |
//! | --- | --- |
//! | without a bridge (of an earlier release; such NICs do not run) | none |
//! | in the private network of its node | on its node, which leases the addresses there |
//! | in any other network | on the site |

use meshd_config::{MacPrefix, vm::derived_mac};
use meshd_proto::vm::{Nic, VmSpec};
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

/// Sets the addresses of slots in the order of the NICs with `slot = true`. Only networks of the
/// site use the IP address.
pub fn fill_slot_nics(spec: &mut VmSpec, slot_nics: Vec<SlotNic>) {
    let (uuid, mut slot_nics) = (spec.uuid, slot_nics.into_iter());
    for (index, nic) in spec.nics.iter_mut().enumerate().filter(|(_, nic)| nic.slot) {
        let slot_nic = slot_nics.next();
        nic.mac = slot_nic.map_or_else(|| no_mac(uuid, index), |slot_nic| slot_nic.mac);
        nic.address = slot_nic.and_then(|slot_nic| slot_nic.address);
        nic.address = site_address(nic);
    }
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
