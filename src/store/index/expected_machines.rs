//! Expected machines by MAC address, name and address.

use super::dhcp_record_changes::DhcpRecordChange;
use crate::{Model, records::RecordIndex, tx::Tx};
use meshd_model::fleet::ExpectedMachine;
use meshd_types::MacAddr;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::Ipv4Addr,
};

/// Expected machines, with derived indexes.
#[derive(Default)]
pub(crate) struct ExpectedMachines {
    machines: BTreeMap<MacAddr, ExpectedMachine>,
    names: BTreeMap<String, MacAddr>,
    addresses: BTreeMap<Ipv4Addr, MacAddr>,
}

impl ExpectedMachines {
    fn insert(&mut self, machine: ExpectedMachine) -> Option<ExpectedMachine> {
        let before = self.remove(machine.mac);
        if let Some(name) = &machine.name {
            self.names.insert(name.clone(), machine.mac);
        }
        if let Some(address) = machine.address {
            self.addresses.insert(address, machine.mac);
        }
        self.machines.insert(machine.mac, machine);
        before
    }

    fn remove(&mut self, mac: MacAddr) -> Option<ExpectedMachine> {
        let machine = self.machines.remove(&mac)?;
        // Another machine may own the name or the address now: machines can swap them.
        if let Some(name) = machine.name.clone() {
            remove_if_owned(self.names.entry(name), mac);
        }
        if let Some(address) = machine.address {
            remove_if_owned(self.addresses.entry(address), mac);
        }
        Some(machine)
    }
}

fn remove_if_owned<K: Ord>(entry: Entry<'_, K, MacAddr>, mac: MacAddr) {
    if let Entry::Occupied(entry) = entry
        && *entry.get() == mac
    {
        entry.remove();
    }
}

impl Model {
    /// All expected machines, by MAC address; also those that have appeared.
    pub fn expected_machines(&self) -> impl Iterator<Item = &ExpectedMachine> {
        self.expected.machines.values()
    }

    /// Number of expected machines on record.
    pub fn expected_count(&self) -> usize {
        self.expected.machines.len()
    }

    /// The expected machine with this boot NIC.
    pub fn expected_machine(&self, mac: MacAddr) -> Option<&ExpectedMachine> {
        self.expected.machines.get(&mac)
    }

    /// The expected machine with this name.
    pub fn expected_machine_named(&self, name: &str) -> Option<&ExpectedMachine> {
        self.expected_machine(*self.expected.names.get(name)?)
    }

    /// The expected machine for which an address is reserved.
    pub fn expected_machine_at(&self, address: Ipv4Addr) -> Option<&ExpectedMachine> {
        self.expected_machine(*self.expected.addresses.get(&address)?)
    }
}

impl RecordIndex<MacAddr, ExpectedMachine> for Model {
    fn put_record(&mut self, mac: MacAddr, machine: ExpectedMachine) -> Option<ExpectedMachine> {
        self.work.nics.changes.push(DhcpRecordChange::Nic(mac));
        self.expected.insert(machine)
    }

    fn remove_record(&mut self, mac: &MacAddr) -> Option<ExpectedMachine> {
        self.work.nics.changes.push(DhcpRecordChange::Nic(*mac));
        self.expected.remove(*mac)
    }
}

impl Tx<'_> {
    /// An expected machine, as staged or as it was.
    pub fn expected_machine(&self, mac: MacAddr) -> Option<&ExpectedMachine> {
        self.staged.expected.get(&mac, || self.before().expected_machine(mac))
    }

    pub fn put_expected_machine(&mut self, machine: ExpectedMachine) {
        self.staged.expected.put(machine.mac, machine);
    }

    pub fn remove_expected_machine(&mut self, mac: MacAddr) {
        if self.expected_machine(mac).is_some() {
            self.staged.expected.remove(mac);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Timestamp;

    #[test]
    fn machines_that_swap_addresses_are_found_by_the_new_ones() {
        let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
        let machine = |last, name: &str, address| ExpectedMachine {
            name: Some(name.to_owned()),
            address: Some(Ipv4Addr::new(10, 77, 0, address)),
            ..ExpectedMachine::new(mac(last), Timestamp::EPOCH)
        };
        let mut model = Model::default();
        let revision = model.dhcp_revision();
        for machine in
            [machine(1, "a", 21), machine(2, "b", 22), machine(1, "b", 22), machine(2, "a", 21)]
        {
            let _ = model.put_record(machine.mac, machine);
        }
        let at = |model: &Model, address| {
            model.expected_machine_at(Ipv4Addr::new(10, 77, 0, address)).map(|machine| machine.mac)
        };
        assert_eq!((at(&model, 21), at(&model, 22)), (Some(mac(2)), Some(mac(1))));
        let named = |model: &Model, name| model.expected_machine_named(name).map(|it| it.mac);
        assert_eq!((named(&model, "a"), named(&model, "b")), (Some(mac(2)), Some(mac(1))));
        let changes = model.dhcp_record_changes_since(revision).expect("few changes");
        assert_eq!(changes.len(), 2, "DHCP learns of both NICs");
        let _ = RecordIndex::<MacAddr, ExpectedMachine>::remove_record(&mut model, &mac(1));
        assert_eq!(
            (at(&model, 21), at(&model, 22), model.expected_count()),
            (Some(mac(2)), None, 1)
        );
    }
}
