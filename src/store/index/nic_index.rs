//! VM NICs by MAC address and IP address, their leases, and changes since the last scan.

use super::range_set::RangeSet;
use crate::{Model, records::RecordIndex, tx::Tx};
use meshd_model::{
    fleet::Lease,
    work::{NicChanges, ReservedNic, Vm, site_address},
};
use meshd_types::{MacAddr, SystemUuid};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::Ipv4Addr,
};

/// Maximum number of changes that a reader receives incrementally; beyond it, the reader receives all NICs.
const RECENT: usize = 4096;

/// NICs by MAC and IP address. If two VMs have one address, the VM with the lower UUID owns it.
#[derive(Default)]
pub(crate) struct NicIndex {
    macs: BTreeSet<(MacAddr, SystemUuid)>,
    addresses: BTreeSet<(Ipv4Addr, SystemUuid)>,
    /// The keys of `addresses`.
    reserved_addresses: RangeSet,
    leases: BTreeSet<(SystemUuid, Ipv4Addr)>,
    /// Number of changes; the last one is the end of `recent`.
    revision: u64,
    recent: VecDeque<MacAddr>,
}

fn holder<K: Copy + Ord>(index: &BTreeSet<(K, SystemUuid)>, key: K) -> Option<SystemUuid> {
    let (found, uuid) = index.range((key, SystemUuid([0; 16]))..).next()?;
    (*found == key).then_some(*uuid)
}

impl NicIndex {
    pub(crate) fn add(&mut self, vm: &Vm) {
        for nic in vm.own_nics() {
            self.macs.insert((nic.mac, vm.uuid()));
            self.changed(nic.mac);
            if let Some(address) = site_address(nic) {
                self.addresses.insert((address, vm.uuid()));
                self.reserved_addresses.insert(address);
            }
        }
    }

    pub(crate) fn remove(&mut self, vm: &Vm) {
        for nic in vm.own_nics() {
            self.macs.remove(&(nic.mac, vm.uuid()));
            self.changed(nic.mac);
            if let Some(address) = site_address(nic) {
                self.addresses.remove(&(address, vm.uuid()));
                if holder(&self.addresses, address).is_none() {
                    self.reserved_addresses.remove(address);
                }
            }
        }
    }

    fn changed(&mut self, mac: MacAddr) {
        self.revision += 1;
        self.recent.push_back(mac);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    fn lease(&mut self, lease: &Lease, is_added: bool) {
        let Some(vm) = lease.vm else { return };
        let key = (vm, lease.address);
        if is_added {
            self.leases.insert(key)
        } else {
            self.leases.remove(&key)
        };
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

    /// Number of changes of NICs since the start.
    pub fn nic_revision(&self) -> u64 {
        self.work.nics.revision
    }

    /// Changes of NICs since a revision; all NICs for `None` or an old revision.
    pub fn vm_nics_since(&self, known_revision: Option<u64>) -> NicChanges {
        let index = &self.work.nics;
        let missed = known_revision
            .map(|known_revision| index.revision.saturating_sub(known_revision))
            .and_then(|count| usize::try_from(count).ok());
        match missed.filter(|count| *count <= index.recent.len()) {
            Some(count) => {
                let changed: BTreeSet<MacAddr> = index.recent.iter().rev().take(count).copied().collect();
                NicChanges::Changed(changed.into_iter().map(|mac| (mac, self.nic(mac))).collect())
            }
            None => {
                let mut all: BTreeMap<MacAddr, ReservedNic> = BTreeMap::new();
                for nic in self.vms().flat_map(Vm::reserved_nics) {
                    all.entry(nic.mac).or_insert(nic);
                }
                NicChanges::All(all.into_values().collect())
            }
        }
    }

    fn nic(&self, mac: MacAddr) -> Option<ReservedNic> {
        self.vm_of_mac(mac)?.reserved_nics().find(|nic| nic.mac == mac)
    }

    /// Leases of a VM's NICs.
    pub fn leases_of_vm(&self, vm: SystemUuid) -> impl Iterator<Item = &Lease> {
        let own = self.work.nics.leases.range((vm, Ipv4Addr::UNSPECIFIED)..=(vm, Ipv4Addr::BROADCAST));
        own.filter_map(|(_, address)| self.lease(*address))
    }

    /// Leases of VMs without a record.
    pub fn stale_leases(&self) -> impl Iterator<Item = &Lease> {
        let gone = self.work.nics.leases.iter().filter(|(vm, _)| self.vm(*vm).is_none());
        gone.filter_map(|(_, address)| self.lease(*address))
    }
}

impl RecordIndex<Ipv4Addr, Lease> for Model {
    fn put_record(&mut self, address: Ipv4Addr, lease: Lease) -> Option<Lease> {
        let before = self.remove_record(&address);
        self.work.nics.lease(&lease, true);
        self.leases.insert(address, lease);
        before
    }

    fn remove_record(&mut self, address: &Ipv4Addr) -> Option<Lease> {
        let lease = self.leases.remove(address)?;
        self.work.nics.lease(&lease, false);
        Some(lease)
    }
}

impl Tx<'_> {
    /// Removes a VM and all leases of its NICs.
    pub fn remove_vm(&mut self, uuid: SystemUuid) {
        let leases: Vec<Ipv4Addr> = self.before().leases_of_vm(uuid).map(|lease| lease.address).collect();
        leases.into_iter().for_each(|address| self.remove_lease(address));
        self.staged.vms.remove(uuid);
    }
}

#[cfg(test)]
#[path = "nic_index_tests.rs"]
mod tests;
