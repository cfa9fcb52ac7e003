//! The input of the DHCP engine: NICs of nodes and VMs, addresses in use, removed leases.

use crate::{boot::BootService, environment::site_snapshot::SiteSnapshot};
use meshd_model::{fleet::RelayPort, work::ReservedNic};
use meshd_store::{DhcpRecordChange, Model};
use meshd_types::{MacAddr, NodeId, Timestamp};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

impl BootService {
    /// Returns what changed for DHCP since a revision, or everything without one; `None` if nothing
    /// did.
    pub fn dhcp_record_update(&self, since: Option<u64>) -> Option<DhcpRecordUpdate> {
        let snapshot = self.env.snapshot();
        self.env.store.read(|model| {
            let revision = model.dhcp_revision();
            if since == Some(revision) {
                return None;
            }
            let record = |mac| self.nic_record(model, &snapshot, mac);
            let mut nics = BTreeMap::new();
            let mut removed_leases = Vec::new();
            let changes = since.and_then(|since| model.dhcp_record_changes_since(since));
            let is_complete = changes.is_none();
            match changes {
                None => nics.extend(
                    model.all_nics().into_iter().filter_map(|mac| Some((mac, Some(record(mac)?)))),
                ),
                Some(changes) => {
                    for change in changes {
                        match change {
                            DhcpRecordChange::Nic(mac) => drop(nics.insert(mac, record(mac))),
                            DhcpRecordChange::LeaseRemoved { mac, address } => {
                                // A later transaction may have stored the lease again.
                                if model.lease(address).is_none_or(|lease| lease.mac != mac) {
                                    removed_leases.push((mac, address));
                                }
                            }
                        }
                    }
                }
            }
            Some(DhcpRecordUpdate { revision, is_complete, nics, removed_leases })
        })
    }

    fn nic_record(
        &self,
        model: &Model,
        snapshot: &SiteSnapshot,
        mac: MacAddr,
    ) -> Option<NicRecord> {
        let vm = model.reserved_nic(mac);
        let node = model.node_of_mac(mac);
        let boot = model
            .newest_session(mac)
            .and_then(|session| Some((session.address?, session.holds_address_until()?)));
        let mut used: Vec<(Ipv4Addr, Option<Timestamp>)> =
            boot.into_iter().map(|(address, until)| (address, Some(until))).collect();
        // The phase, not the link: this record is read again only after a change of the store.
        let linked = node.filter(|node| node.phase.has_link());
        if let Some(IpAddr::V4(address)) = linked.and_then(|node| node.address) {
            used.push((address, None));
        }
        let machine = node.map(|node| MachineNic {
            ids: std::iter::once(snapshot.reserved_node_id(node)).chain(node.known_as()).collect(),
            is_approved: node.phase.is_admitted(),
            is_boot_nic: node.mac == mac,
            attachment: (node.is_local || node.relay_port.is_some())
                .then(|| (node.is_local, node.relay_port.clone())),
        });
        let reserved = model.expected_machine(mac).and_then(|machine| machine.address);
        let is_known = vm.is_some() || machine.is_some() || reserved.is_some() || !used.is_empty();
        is_known.then_some(NicRecord { vm, machine, reserved, used })
    }
}

/// What changed for DHCP.
#[derive(Debug)]
pub struct DhcpRecordUpdate {
    /// The revision of this update.
    pub revision: u64,
    /// `nics` are all NICs with a record.
    pub is_complete: bool,
    /// Changed NICs; `None`: nothing is known of the NIC any more.
    pub nics: BTreeMap<MacAddr, Option<NicRecord>>,
    /// Removed leases that no later change has stored again, in no particular order.
    pub removed_leases: Vec<(MacAddr, Ipv4Addr)>,
}

/// What is known of a NIC.
#[derive(Debug)]
pub struct NicRecord {
    pub vm: Option<ReservedNic>,
    pub machine: Option<MachineNic>,
    /// The address of the expected machine of the NIC.
    pub reserved: Option<Ipv4Addr>,
    /// Addresses that the machine boots from, each with the end of the boot, or has its link from.
    pub used: Vec<(Ipv4Addr, Option<Timestamp>)>,
}

/// The node of a NIC.
#[derive(Debug)]
pub struct MachineNic {
    /// IDs of the node: first the one in the site's reservations.
    pub ids: Vec<NodeId>,
    pub is_approved: bool,
    pub is_boot_nic: bool,
    /// Whether the node enrolled on a local segment, and its relay port; `None` if neither is
    /// known.
    pub attachment: Option<(bool, Option<RelayPort>)>,
}
