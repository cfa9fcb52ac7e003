//! MAC and IP addresses of virtual NICs. The transaction that records a VM reserves them, until the
//! record is removed.

use crate::{environment::site_snapshot::SiteSnapshot, vms::Vms};
use meshd_config::{MacPrefix, vm::derived_mac};
use meshd_model::{
    fleet::Lease,
    work::{SlotId, SlotNic, Vm, private_address, site_address},
};
use meshd_proto::{
    InterfaceName, NetworkName,
    vm::{Nic, SpecFault, VmSpec, is_host_address},
};
use meshd_store::{Model, StoreError};
use meshd_types::{MacAddr, NodeId, SystemUuid, Timestamp};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// Attempts to find a free MAC address. If half of all addresses with the prefix are taken, the
/// search fails once in a billion times.
const ATTEMPTS: u32 = 30;

impl Vms {
    /// Removes leases of VMs without a record; called once, at the start.
    pub async fn drop_stale_leases(&self) -> Result<(), StoreError> {
        let stored = self.env.store.commit(|tx| {
            let stale: Vec<Lease> = tx.before().stale_leases().cloned().collect();
            for lease in stale {
                tracing::info!(address = %lease.address, mac = %lease.mac, "removed a lease: its VM has no record");
                tx.remove_lease(lease.address);
            }
            Ok(())
        });
        stored.await
    }

    /// Fills in the present addresses of a VM's NICs: the lease, else the address that its node
    /// reports, else the reserved address.
    pub fn fill_addresses(&self, vm: SystemUuid, node: Option<NodeId>, nics: &mut [Nic]) {
        let now = self.env.now();
        let leased: Vec<Lease> =
            self.env.store.read(|model| model.leases_of_vm(vm).cloned().collect());
        let reported = node.map(|node| self.reported_addresses(node, vm)).unwrap_or_default();
        for nic in nics {
            let lease =
                leased.iter().filter(|lease| lease.mac == nic.mac && lease.expires_at > now);
            let lease = lease.max_by_key(|lease| lease.expires_at).map(|lease| lease.address);
            nic.address = lease.or_else(|| reported.get(&nic.mac).copied()).or(nic.address);
        }
    }
}

/// Assigns the MAC and IP addresses that the specification of a new VM omits, and checks the
/// others.
///
/// # Errors
/// All conflicts, each with the owner of the address.
pub(crate) fn assign_nic_addresses(
    model: &Model,
    snapshot: &SiteSnapshot,
    spec: &mut VmSpec,
    now: Timestamp,
) -> Result<(), Vec<SpecFault>> {
    let checks = AddressChecks { model, snapshot, now };
    let mut faults = Vec::new();
    let mut add_fault = |index: usize, key: &str, message: String, hint: &str| {
        faults.push(SpecFault {
            key: format!("nic[{index}].{key}"),
            message,
            hint: hint.to_owned(),
        });
    };
    let uuid = spec.uuid;
    // NICs of slots have the addresses of their slots.
    let mut macs: BTreeSet<MacAddr> = spec.nics.iter().map(|nic| nic.mac).collect();
    let mut assigned: BTreeSet<Ipv4Addr> = spec.nics.iter().filter_map(site_address).collect();
    for (index, nic) in spec.nics.iter_mut().enumerate().filter(|(_, nic)| !nic.slot) {
        if nic.mac == derived_mac(&MacPrefix::default(), uuid, index, 0) {
            macs.remove(&nic.mac);
            match checks.free_mac(uuid, index, &macs) {
                Some(mac) => nic.mac = mac,
                None => add_fault(
                    index,
                    "mac",
                    "no free MAC address with the prefix of site.toml".to_owned(),
                    "set one",
                ),
            }
            macs.insert(nic.mac);
        } else if let Some(holder) = checks.mac_holder(nic.mac) {
            add_fault(
                index,
                "mac",
                format!("{} is {holder}", nic.mac),
                "omit it, or use another address",
            );
        }
        if let Some(address) = site_address(nic) {
            if let Some(holder) = checks.holder_of(address, nic.mac) {
                add_fault(
                    index,
                    "address",
                    format!("{address} is {holder}"),
                    "omit it, or use another address",
                );
            }
        } else if let Some(bridge) =
            nic.bridge.as_ref().filter(|bridge| !NetworkName::of_bridge(bridge).is_private())
        {
            match checks.free_address(bridge, nic.mac, &assigned) {
                PoolSearch::NoPool => {}
                PoolSearch::Free(address) => {
                    assigned.insert(address);
                    nic.address = Some(address);
                }
                PoolSearch::Full => {
                    let message = format!("every address of [[vms.pool]] for {bridge} is taken");
                    add_fault(
                        index,
                        "address",
                        message,
                        "extend the pool in site.toml, or delete VMs",
                    );
                }
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Describes why a slot cannot have these addresses.
pub(crate) fn slot_address_conflict(
    model: &Model,
    snapshot: &SiteSnapshot,
    now: Timestamp,
    id: &SlotId,
    nic: SlotNic,
) -> Option<String> {
    let checks = AddressChecks { model, snapshot, now };
    let SlotNic { mac, address } = nic;
    if mac.is_multicast() || mac.0 == [0; 6] {
        return Some(format!("{mac} is not a valid NIC address"));
    }
    let other_slot = |slot: Option<&SlotId>| {
        slot.filter(|slot| *slot != id).map(|slot| format!("assigned to slot {slot}"))
    };
    if let Some(holder) = checks.mac_user(mac, None).or_else(|| other_slot(model.slot_of_mac(mac)))
    {
        return Some(format!("{mac} is {holder}"));
    }
    let address = address?;
    if !is_host_address(address) {
        return Some(format!("{address} is not a valid host address"));
    }
    if let Some(holder) =
        checks.address_user(address, mac, None).or_else(|| other_slot(model.slot_at(address)))
    {
        return Some(format!("{address} is {holder}"));
    }
    let leased = snapshot.site.segments.iter().filter_map(|segment| segment.subnet.as_ref());
    let range = leased.into_iter().find(|range| range.contains(address))?;
    Some(format!(
        "{address} lies in the range {}-{}, which DHCP leases to any machine",
        range.first, range.last
    ))
}

/// Checks that the slot addresses of a VM are still free: site.toml may have reserved them since,
/// and other VMs may use them.
///
/// # Errors
/// All conflicts, each with the owner of the address.
pub(crate) fn check_slot_nics(
    model: &Model,
    snapshot: &SiteSnapshot,
    vm: &Vm,
    now: Timestamp,
) -> Result<(), Vec<SpecFault>> {
    let checks = AddressChecks { model, snapshot, now };
    let mut faults = Vec::new();
    for (index, nic) in vm.nics().enumerate().filter(|(_, nic)| nic.slot) {
        let mac = checks
            .mac_user(nic.mac, Some(vm.uuid()))
            .map(|holder| format!("{} is {holder}", nic.mac));
        let address = nic.address.and_then(|address| {
            checks
                .address_user(address, nic.mac, Some(vm.uuid()))
                .map(|holder| format!("{address} is {holder}"))
        });
        faults.extend(mac.into_iter().chain(address).map(|message| SpecFault {
            key: format!("nic[{index}].slot"),
            message,
            hint: "approve the slot with other addresses: meshd slot approve".to_owned(),
        }));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// True if another VM of the node has one of this VM's addresses in the private network.
pub(crate) fn is_private_address_taken(model: &Model, node: NodeId, vm: &Vm) -> bool {
    let private_addresses =
        |vm: &Vm| vm.nics().filter_map(|nic| private_address(&nic)).collect::<Vec<Ipv4Addr>>();
    let addresses = private_addresses(vm);
    let others = || model.vms_of(node).filter(|other| other.uuid() != vm.uuid());
    !addresses.is_empty()
        && others().flat_map(private_addresses).any(|address| addresses.contains(&address))
}

enum PoolSearch {
    NoPool,
    Free(Ipv4Addr),
    Full,
}

/// Checks addresses against one state of store and site.
struct AddressChecks<'a> {
    model: &'a Model,
    snapshot: &'a SiteSnapshot,
    now: Timestamp,
}

impl AddressChecks<'_> {
    fn mac_holder(&self, mac: MacAddr) -> Option<String> {
        let slot = || self.model.slot_of_mac(mac).map(|slot| format!("assigned to slot {slot}"));
        self.mac_user(mac, None).or_else(slot)
    }

    /// The holder other than this VM, without the addresses of slots.
    fn mac_user(&self, mac: MacAddr, excluded: Option<SystemUuid>) -> Option<String> {
        let vm = || {
            let vm = self.model.vm_of_mac(mac).filter(|vm| Some(vm.uuid()) != excluded)?;
            Some(format!("a NIC of the VM {} ({})", vm.name(), vm.uuid()))
        };
        let node = || self.model.node_of_mac(mac).map(|node| format!("a NIC of node {}", node.id));
        let expected = || {
            let machine = self.model.expected_machine(mac)?;
            Some(format!("the boot NIC of the expected machine {}", machine.title()))
        };
        let reserved = || {
            self.snapshot
                .reserved([], [&mac])
                .map(|address| format!("reserved by a [[reservation]] for {address}"))
        };
        vm().or_else(node).or_else(expected).or_else(reserved)
    }

    fn free_mac(
        &self,
        uuid: SystemUuid,
        index: usize,
        excluded: &BTreeSet<MacAddr>,
    ) -> Option<MacAddr> {
        let prefix = &self.snapshot.site.vms.mac_prefix;
        let mut tried = (0..ATTEMPTS).map(|attempt| derived_mac(prefix, uuid, index, attempt));
        tried.find(|mac| !excluded.contains(mac) && self.mac_holder(*mac).is_none())
    }

    fn holder_of(&self, address: Ipv4Addr, mac: MacAddr) -> Option<String> {
        let slot = || self.model.slot_at(address).map(|slot| format!("assigned to slot {slot}"));
        self.address_user(address, mac, None).or_else(slot)
    }

    /// The holder other than this VM, without the addresses of slots.
    fn address_user(
        &self,
        address: Ipv4Addr,
        mac: MacAddr,
        excluded: Option<SystemUuid>,
    ) -> Option<String> {
        let vm = || {
            let vm = self.model.vm_at(address).filter(|vm| Some(vm.uuid()) != excluded)?;
            Some(format!("assigned to the VM {} ({})", vm.name(), vm.uuid()))
        };
        let expected = || {
            let machine = self.model.expected_machine_at(address).filter(|it| it.mac != mac)?;
            Some(format!("reserved for the machine {}", machine.title()))
        };
        vm().or_else(|| self.snapshot.holder_of(address))
            .or_else(expected)
            .or_else(|| self.lease_holder(address, mac))
    }

    fn lease_holder(&self, address: Ipv4Addr, mac: MacAddr) -> Option<String> {
        let lease = self
            .model
            .lease(address)
            .filter(|lease| lease.mac != mac && lease.expires_at > self.now)?;
        let node = self
            .model
            .node_of_mac(lease.mac)
            .map(|node| format!(" of node {}", node.id))
            .unwrap_or_default();
        Some(format!("leased to NIC {}{node} until {}", lease.mac, lease.expires_at))
    }

    fn free_address(
        &self,
        bridge: &InterfaceName,
        mac: MacAddr,
        excluded: &BTreeSet<Ipv4Addr>,
    ) -> PoolSearch {
        let mut result = PoolSearch::NoPool;
        for pool in self.snapshot.site.vms.pools_of(bridge) {
            result = PoolSearch::Full;
            let mut next = self.model.next_free_of_vms(pool.first);
            while let Some(address) = next.filter(|address| *address <= pool.last) {
                // DHCP ranges keep their values until a restart, although site.toml may have
                // changed.
                let leased = self
                    .snapshot
                    .site
                    .segments
                    .iter()
                    .filter_map(|segment| segment.subnet.as_ref());
                let range = leased.into_iter().find(|range| range.contains(address));
                if range.is_none()
                    && !excluded.contains(&address)
                    && self.holder_of(address, mac).is_none()
                {
                    return PoolSearch::Free(address);
                }
                let last = range.map_or(address, |range| range.last);
                next = u32::from(last)
                    .checked_add(1)
                    .and_then(|next| self.model.next_free_of_vms(next.into()));
            }
        }
        result
    }
}
