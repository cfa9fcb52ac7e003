//! Changes of records that a DHCP service needs, since its last look.

use crate::Model;
use meshd_model::{
    fleet::Node,
    work::{ReservedNic, Vm},
};
use meshd_types::MacAddr;
use std::{
    collections::{BTreeSet, VecDeque},
    net::Ipv4Addr,
};

/// Maximum number of remembered changes. A reader that is further behind reads all records.
const REMEMBERED: usize = 65_536;

/// A change that concerns DHCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DhcpRecordChange {
    /// The node, the expected machine, the VM or the newest boot of a NIC may have changed.
    Nic(MacAddr),
    /// A lease was removed.
    LeaseRemoved { mac: MacAddr, address: Ipv4Addr },
}

/// The last changes.
#[derive(Default)]
pub(crate) struct DhcpRecordChanges {
    /// Number of changes since the start.
    revision: u64,
    recent: VecDeque<DhcpRecordChange>,
}

impl DhcpRecordChanges {
    pub(crate) fn push(&mut self, change: DhcpRecordChange) {
        self.revision += 1;
        self.recent.push_back(change);
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
    }

    pub(crate) fn push_node(&mut self, node: &Node) {
        node.fingerprint.macs.iter().for_each(|mac| self.push(DhcpRecordChange::Nic(*mac)));
        if !node.fingerprint.macs.contains(&node.mac) {
            self.push(DhcpRecordChange::Nic(node.mac));
        }
    }
}

impl Model {
    /// Number of changes that concern DHCP since the start.
    pub fn dhcp_revision(&self) -> u64 {
        self.work.nics.changes.revision
    }

    /// Distinct changes since a revision; `None` for an old revision: read all records.
    pub fn dhcp_record_changes_since(&self, revision: u64) -> Option<BTreeSet<DhcpRecordChange>> {
        let DhcpRecordChanges { revision: newest, recent } = &self.work.nics.changes;
        let missed = usize::try_from(newest.saturating_sub(revision))
            .ok()
            .filter(|count| *count <= recent.len())?;
        Some(recent.iter().rev().take(missed).copied().collect())
    }

    /// The NICs of all nodes, expected machines, VMs and boots.
    pub fn all_nics(&self) -> BTreeSet<MacAddr> {
        let of_nodes = self
            .nodes
            .values()
            .flat_map(|node| node.fingerprint.macs.iter().copied().chain([node.mac]));
        let of_vms = self.vms().flat_map(Vm::own_nics).map(|nic| nic.mac);
        let expected = self.expected_machines().map(|machine| machine.mac);
        let of_records = of_nodes.chain(of_vms).chain(expected);
        of_records.chain(self.sessions_by_mac.keys().copied()).collect()
    }

    /// The VM's NIC with this MAC address.
    pub fn reserved_nic(&self, mac: MacAddr) -> Option<ReservedNic> {
        self.vm_of_mac(mac)?.reserved_nics().find(|nic| nic.mac == mac)
    }
}
