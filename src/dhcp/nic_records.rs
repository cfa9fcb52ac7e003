//! Input of the engine: what the user's records say of NICs, as a stream of changes. Pure.

use meshd_types::{MacAddr, NodeId, SystemUuid, Timestamp, VmName};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Changes of records: those of NICs, then removed leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChanges {
    /// Every NIC with a record. The others have none.
    All(Vec<NicRecord>),
    Some(Vec<RecordChange>),
}

/// A change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// The record of a NIC was added or replaced.
    Nic(NicRecord),
    /// Nothing is known of a NIC any more.
    NicRemoved(MacAddr),
    /// The user removed a lease. A client that uses the address gets it again when it asks.
    LeaseRemoved { mac: MacAddr, address: Ipv4Addr },
}

/// What is known of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicRecord {
    pub mac: MacAddr,
    /// The VM of the NIC.
    pub vm: Option<ReservedNic>,
    /// The machine that was seen with the NIC.
    pub machine: Option<MachineNic>,
    /// The address that the user reserves for the machine of the NIC, besides
    /// [`crate::Setup::reservations`].
    pub reserved: Option<Ipv4Addr>,
    /// Addresses that the machine boots or runs with: no release or decline takes them away.
    pub used: Vec<UsedAddress>,
}

/// A NIC of a VM. It gets an address but no boot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedNic {
    pub vm: SystemUuid,
    /// Name of the VM, and the host name for the client.
    pub name: VmName,
    pub mac: MacAddr,
    pub address: Option<Ipv4Addr>,
}

impl NicRecord {
    /// Returns a record without content.
    pub fn new(mac: MacAddr) -> Self {
        NicRecord { mac, vm: None, machine: None, reserved: None, used: Vec::new() }
    }

    /// Returns the record of a VM's NIC.
    pub fn of_vm(nic: ReservedNic) -> Self {
        NicRecord { vm: Some(nic.clone()), ..NicRecord::new(nic.mac) }
    }
}

/// The machine of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNic {
    /// The IDs of the machine, at least one: first the one that reservations use.
    pub ids: Vec<NodeId>,
    /// The machine is approved: its addresses are never leased to others, even after their leases.
    pub is_approved: bool,
    /// The machine boots from this NIC. The operating system may use NICs that the machine does not
    /// boot from.
    pub is_boot_nic: bool,
    /// Where the NIC was attached when its machine was approved; `None` if unknown.
    pub attachment: Option<Attachment>,
}

/// An address that a machine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedAddress {
    pub address: Ipv4Addr,
    /// End of the use; `None`: as long as the record stands.
    pub until: Option<Timestamp>,
}

/// Where a NIC is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// On a direct segment, without a relay.
    pub is_local: bool,
    /// The port that the relay reported, if any.
    pub relay_port: Option<RelayPort>,
}

/// The port of a client at its relay: sub-options 1 and 2 of option 82 (RFC 3046) in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayPort {
    /// The relay of the client's segment, according to the configuration; `None` on a direct
    /// segment, and if unknown. Ports of different relays may have equal IDs.
    pub relay: Option<Ipv4Addr>,
    /// Agent circuit ID.
    pub circuit_id: Option<String>,
    /// Agent remote ID.
    pub remote_id: Option<String>,
}

/// All records of NICs.
#[derive(Default)]
pub(crate) struct KnownNics {
    nics: BTreeMap<MacAddr, NicRecord>,
    /// IDs of approved machines, with the number of their NICs.
    approved: BTreeMap<NodeId, usize>,
}

impl KnownNics {
    pub(crate) fn get(&self, mac: MacAddr) -> Option<&NicRecord> {
        self.nics.get(&mac)
    }

    pub(crate) fn macs(&self) -> impl Iterator<Item = MacAddr> + '_ {
        self.nics.keys().copied()
    }

    pub(crate) fn put(&mut self, record: NicRecord) {
        self.remove(record.mac);
        for id in approved_ids(&record) {
            *self.approved.entry(*id).or_default() += 1;
        }
        self.nics.insert(record.mac, record);
    }

    pub(crate) fn remove(&mut self, mac: MacAddr) {
        let Some(record) = self.nics.remove(&mac) else { return };
        for id in approved_ids(&record) {
            if let Some(count) = self.approved.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.approved.remove(id);
                }
            }
        }
    }

    pub(crate) fn vm(&self, mac: MacAddr) -> Option<&ReservedNic> {
        self.get(mac)?.vm.as_ref()
    }

    /// Returns the address that the record of a NIC reserves for its machine.
    pub(crate) fn reserved_address(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.get(mac)?.reserved
    }

    fn machine(&self, mac: MacAddr) -> Option<&MachineNic> {
        self.get(mac)?.machine.as_ref()
    }

    /// Returns the machine of a NIC, by the ID that reservations use.
    pub(crate) fn node_of(&self, mac: MacAddr) -> Option<NodeId> {
        self.machine(mac)?.ids.first().copied()
    }

    /// Returns true if the NIC belongs to an approved machine.
    pub(crate) fn keeps_address(&self, mac: MacAddr) -> bool {
        self.machine(mac).is_some_and(|machine| machine.is_approved)
    }

    /// Returns true while the machine boots or runs with this address.
    pub(crate) fn uses_address(&self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> bool {
        let is_used = |used: &UsedAddress| {
            used.address == address && used.until.is_none_or(|until| now <= until)
        };
        self.get(mac).is_some_and(|record| record.used.iter().any(is_used))
    }

    /// Returns true for the ID of an approved machine.
    pub(crate) fn is_approved(&self, node: NodeId) -> bool {
        self.approved.contains_key(&node)
    }

    /// Returns where the NIC was attached. `boots`: firmware or iPXE asks.
    pub(crate) fn attachment(&self, mac: MacAddr, boots: bool) -> Option<&Attachment> {
        self.machine(mac).filter(|machine| boots || machine.is_boot_nic)?.attachment.as_ref()
    }
}

fn approved_ids(record: &NicRecord) -> &[NodeId] {
    record
        .machine
        .as_ref()
        .filter(|machine| machine.is_approved)
        .map(|machine| machine.ids.as_slice())
        .unwrap_or_default()
}
