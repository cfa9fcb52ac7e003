//! VM NICs by MAC address and IP address, their leases, and changes since the last scan.

use super::range_set::RangeSet;
use crate::{
    Model,
    tx::{Change, Tx},
};
use meshd_model::{
    fleet::Lease,
    work::{NicChanges, ReservedNic, Vm, site_address},
};
use meshd_types::{MacAddr, SystemUuid};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::Ipv4Addr,
};

/// Changes that are told one by one to who was away; beyond it all cards are.
const RECENT: usize = 4096;

/// Indexes. Two machines that an older meshd recorded may share a card or an address: the one with the lower UUID has it.
#[derive(Default)]
pub(crate) struct Cards {
    macs: BTreeSet<(MacAddr, SystemUuid)>,
    addresses: BTreeSet<(Ipv4Addr, SystemUuid)>,
    /// The addresses once more.
    given: RangeSet,
    leases: BTreeSet<(SystemUuid, Ipv4Addr)>,
    /// Counts changes; the last one of `recent` is this one.
    revision: u64,
    recent: VecDeque<MacAddr>,
}

fn holder<K: Copy + Ord>(index: &BTreeSet<(K, SystemUuid)>, key: K) -> Option<SystemUuid> {
    let (found, uuid) = index.range((key, SystemUuid([0; 16]))..).next()?;
    (*found == key).then_some(*uuid)
}

impl Cards {
    pub(crate) fn add(&mut self, vm: &Vm) {
        for nic in vm.own_nics() {
            self.macs.insert((nic.mac, vm.uuid()));
            self.changed(nic.mac);
            if let Some(address) = site_address(nic) {
                self.addresses.insert((address, vm.uuid()));
                self.given.insert(address);
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
                    self.given.remove(address);
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

    fn lease(&mut self, lease: &Lease, is_there: bool) {
        let Some(vm) = lease.vm else { return };
        let key = (vm, lease.address);
        if is_there {
            self.leases.insert(key)
        } else {
            self.leases.remove(&key)
        };
    }
}

impl Model {
    /// The virtual machine that has a card of this MAC address.
    pub fn vm_of_mac(&self, mac: MacAddr) -> Option<&Vm> {
        self.vm(holder(&self.work.cards.macs, mac)?)
    }

    /// The virtual machine for which an address of the site's networks is reserved.
    pub fn vm_at(&self, address: Ipv4Addr) -> Option<&Vm> {
        self.vm(holder(&self.work.cards.addresses, address)?)
    }

    /// The first address from this one on that is reserved for no virtual machine.
    pub fn next_free_of_vms(&self, from: Ipv4Addr) -> Option<Ipv4Addr> {
        self.work.cards.given.next_free(from)
    }

    /// How many changes of cards there were since the start.
    pub fn card_revision(&self) -> u64 {
        self.work.cards.revision
    }

    /// What of the cards is new to who has seen them at this revision; `None`: never.
    pub fn cards_since(&self, seen: Option<u64>) -> NicChanges {
        let cards = &self.work.cards;
        let behind = seen.map(|seen| cards.revision.saturating_sub(seen)).and_then(|count| usize::try_from(count).ok());
        match behind.filter(|count| *count <= cards.recent.len()) {
            Some(count) => {
                let changed: BTreeSet<MacAddr> = cards.recent.iter().rev().take(count).copied().collect();
                NicChanges::Changed(changed.into_iter().map(|mac| (mac, self.card(mac))).collect())
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

    fn card(&self, mac: MacAddr) -> Option<ReservedNic> {
        self.vm_of_mac(mac)?.reserved_nics().find(|nic| nic.mac == mac)
    }

    /// What is leased to the cards of a virtual machine.
    pub fn leases_of_vm(&self, vm: SystemUuid) -> impl Iterator<Item = &Lease> {
        let own = self.work.cards.leases.range((vm, Ipv4Addr::UNSPECIFIED)..=(vm, Ipv4Addr::BROADCAST));
        own.filter_map(|(_, address)| self.lease(*address))
    }

    /// Leases of cards of virtual machines that are on record no more.
    pub fn stale_leases(&self) -> impl Iterator<Item = &Lease> {
        let gone = self.work.cards.leases.iter().filter(|(vm, _)| self.vm(*vm).is_none());
        gone.filter_map(|(_, address)| self.lease(*address))
    }

    pub(crate) fn put_lease(&mut self, lease: Lease) {
        self.remove_lease(lease.address);
        self.work.cards.lease(&lease, true);
        self.leases.insert(lease.address, lease);
    }

    pub(crate) fn remove_lease(&mut self, address: Ipv4Addr) {
        if let Some(lease) = self.leases.remove(&address) {
            self.work.cards.lease(&lease, false);
        }
    }
}

impl Tx<'_> {
    /// Forgets a virtual machine, and every lease of its cards.
    pub fn remove_vm(&mut self, uuid: SystemUuid) {
        let leases: Vec<Ipv4Addr> = self.before().leases_of_vm(uuid).map(|lease| lease.address).collect();
        leases.into_iter().for_each(|address| self.remove_lease(address));
        self.staged.vms.insert(uuid, Change::Remove);
    }
}

#[cfg(test)]
#[path = "nic_index_tests.rs"]
mod tests;
