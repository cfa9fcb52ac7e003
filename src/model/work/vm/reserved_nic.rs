//! NICs of VMs as the site's DHCP server knows them. Pure.

use super::{
    nic_address::{no_mac, site_address},
    record::Vm,
};
use meshd_proto::vm::Nic;
use meshd_types::{MacAddr, SystemUuid, VmName};
use std::net::Ipv4Addr;

/// A NIC as the site's DHCP server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedNic {
    /// UUID of the VM that owns it.
    pub vm: SystemUuid,
    /// Host name of the guest.
    pub name: VmName,
    pub mac: MacAddr,
    /// Address reserved in the site's networks.
    pub address: Option<Ipv4Addr>,
}

impl Vm {
    /// Returns the NICs of the VM, with the addresses of the assigned slots. Only networks of the
    /// site use the IP address of a slot.
    pub fn nics(&self) -> impl Iterator<Item = Nic> + '_ {
        let mut slot_nics = self.assigned.nics.iter();
        self.request.spec.nics.iter().enumerate().map(move |(index, requested)| {
            let mut nic = requested.clone();
            if nic.slot {
                let slot_nic = slot_nics.next();
                nic.mac =
                    slot_nic.map_or_else(|| no_mac(self.uuid(), index), |slot_nic| slot_nic.mac);
                nic.address = slot_nic.and_then(|slot_nic| slot_nic.address);
                nic.address = site_address(&nic);
            }
            nic
        })
    }

    /// Returns the NICs of the VM as the DHCP server knows them.
    pub fn reserved_nics(&self) -> impl Iterator<Item = ReservedNic> {
        let reserved = |nic: Nic| ReservedNic {
            vm: self.uuid(),
            name: self.name().clone(),
            mac: nic.mac,
            address: site_address(&nic),
        };
        self.own_nics().map(reserved)
    }

    /// Returns the NICs of the VM except those that wait for the addresses of a slot.
    pub fn own_nics(&self) -> impl Iterator<Item = Nic> + '_ {
        let has_none =
            |(index, nic): &(usize, Nic)| nic.slot && nic.mac == no_mac(self.uuid(), *index);
        self.nics().enumerate().filter(move |nic| !has_none(nic)).map(|(_, nic)| nic)
    }

    /// Returns true if both VMs have the same name and NICs.
    pub fn has_same_nics(&self, other: &Vm) -> bool {
        self.name() == other.name() && self.own_nics().eq(other.own_nics())
    }
}
