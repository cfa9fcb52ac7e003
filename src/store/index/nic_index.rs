//! VM NICs by MAC address and IP address, and their leases.

use super::{
    dhcp_record_changes::{DhcpRecordChange, DhcpRecordChanges},
    range_set::RangeSet,
};
use crate::{Model, records::RecordIndex, tx::Tx};
use meshd_model::{
    fleet::Lease,
    work::{Vm, site_address},
};
use meshd_types::{MacAddr, SystemUuid};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// NICs by MAC and IP address. If two VMs have one address, the VM with the lower UUID owns it.
#[derive(Default)]
pub(crate) struct NicIndex {
    macs: BTreeSet<(MacAddr, SystemUuid)>,
    addresses: BTreeSet<(Ipv4Addr, SystemUuid)>,
    /// The keys of `addresses`.
    reserved_addresses: RangeSet,
    leases: BTreeSet<(SystemUuid, Ipv4Addr)>,
    leases_of_mac: BTreeSet<(MacAddr, Ipv4Addr)>,
    pub(crate) changes: DhcpRecordChanges,
}

fn holder<K: Copy + Ord>(index: &BTreeSet<(K, SystemUuid)>, key: K) -> Option<SystemUuid> {
    let (found, uuid) = index.range((key, SystemUuid([0; 16]))..).next()?;
    (*found == key).then_some(*uuid)
}

impl NicIndex {
    pub(crate) fn add(&mut self, vm: &Vm) {
        for nic in vm.own_nics() {
            self.macs.insert((nic.mac, vm.uuid()));
            self.changes.push(DhcpRecordChange::Nic(nic.mac));
            if let Some(address) = site_address(&nic) {
                self.addresses.insert((address, vm.uuid()));
                self.reserved_addresses.insert(address);
            }
        }
    }

    pub(crate) fn remove(&mut self, vm: &Vm) {
        for nic in vm.own_nics() {
            self.macs.remove(&(nic.mac, vm.uuid()));
            self.changes.push(DhcpRecordChange::Nic(nic.mac));
            if let Some(address) = site_address(&nic) {
                self.addresses.remove(&(address, vm.uuid()));
                if holder(&self.addresses, address).is_none() {
                    self.reserved_addresses.remove(address);
                }
            }
        }
    }

    fn lease(&mut self, lease: &Lease, is_added: bool) {
        let of_mac = (lease.mac, lease.address);
        let of_vm = lease.vm.map(|vm| (vm, lease.address));
        if is_added {
            self.leases_of_mac.insert(of_mac);
            self.leases.extend(of_vm);
        } else {
            self.leases_of_mac.remove(&of_mac);
            of_vm.map(|of_vm| self.leases.remove(&of_vm));
        }
    }
}

impl Model {
    /// The VM with a NIC of this MAC address.
    pub fn vm_of_mac(&self, mac: MacAddr) -> Option<&Vm> {
        self.vm(holder(&self.work.nics.macs, mac)?)
    }

    /// The VM for which an address of the site is reserved.
    pub fn vm_at(&self, address: Ipv4Addr) -> Option<&Vm> {
        self.vm(holder(&self.work.nics.addresses, address)?)
    }

    /// The first address, from `from` on, that is reserved for no VM.
    pub fn next_free_of_vms(&self, from: Ipv4Addr) -> Option<Ipv4Addr> {
        self.work.nics.reserved_addresses.next_free(from)
    }

    /// Leases of a VM's NICs.
    pub fn leases_of_vm(&self, vm: SystemUuid) -> impl Iterator<Item = &Lease> {
        let own =
            self.work.nics.leases.range((vm, Ipv4Addr::UNSPECIFIED)..=(vm, Ipv4Addr::BROADCAST));
        own.filter_map(|(_, address)| self.lease(*address))
    }

    /// Leases of a NIC, which has one in each of its networks. Some may have ended.
    pub fn leases_of_mac(&self, mac: MacAddr) -> impl Iterator<Item = &Lease> {
        let own = (mac, Ipv4Addr::UNSPECIFIED)..=(mac, Ipv4Addr::BROADCAST);
        let own = self.work.nics.leases_of_mac.range(own);
        own.filter_map(|(_, address)| self.lease(*address))
    }

    /// The lease of a NIC that ends last.
    pub fn lease_of_mac(&self, mac: MacAddr) -> Option<&Lease> {
        self.leases_of_mac(mac).max_by_key(|lease| lease.expires_at)
    }

    /// Leases of VMs without a record.
    pub fn stale_leases(&self) -> impl Iterator<Item = &Lease> {
        let gone = self.work.nics.leases.iter().filter(|(vm, _)| self.vm(*vm).is_none());
        gone.filter_map(|(_, address)| self.lease(*address))
    }
}

impl RecordIndex<Ipv4Addr, Lease> for Model {
    fn put_record(&mut self, address: Ipv4Addr, lease: Lease) -> Option<Lease> {
        let before = self.leases.insert(address, lease.clone());
        before.iter().for_each(|before| self.work.nics.lease(before, false));
        self.work.nics.lease(&lease, true);
        before
    }

    fn remove_record(&mut self, address: &Ipv4Addr) -> Option<Lease> {
        let lease = self.leases.remove(address)?;
        self.work.nics.lease(&lease, false);
        self.work
            .nics
            .changes
            .push(DhcpRecordChange::LeaseRemoved { mac: lease.mac, address: *address });
        Some(lease)
    }
}

impl Tx<'_> {
    /// Removes a VM and all leases of its NICs.
    pub fn remove_vm(&mut self, uuid: SystemUuid) {
        let leases: Vec<Ipv4Addr> =
            self.before().leases_of_vm(uuid).map(|lease| lease.address).collect();
        leases.into_iter().for_each(|address| self.remove_lease(address));
        self.staged.vms.remove(uuid);
    }
}

#[cfg(test)]
#[path = "nic_index_tests.rs"]
mod tests;
