//! MAC and IP addresses of virtual NICs. The transaction that records a virtual machine reserves them, until the record is removed.

use crate::{environment::site_snapshot::SiteSnapshot, workloads::Workloads};
use meshd_config::{MacPrefix, Owner, vm::derived_mac};
use meshd_model::{
    fleet::Lease,
    work::{NicChanges, ReservedNic, SlotId, SlotNic, Vm, private_address, site_address},
};
use meshd_proto::vm::{InterfaceName, Nic, PRIVATE_BRIDGE, SpecFault, VmSpec, is_host_address};
use meshd_store::{Model, StoreError};
use meshd_types::{MacAddr, NodeId, SystemUuid, Timestamp};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// How many MAC addresses are tried for a card whose file names none. Even where half of all that begin so are taken, this many fail
/// once in a billion times.
const ATTEMPTS: u32 = 30;

impl Workloads {
    /// All cards, and as of which revision.
    pub fn all_cards(&self) -> (u64, Vec<ReservedNic>) {
        self.env.store.read(|model| match model.cards_since(None) {
            NicChanges::All(all) => (model.card_revision(), all),
            NicChanges::Changed(_) => (model.card_revision(), Vec::new()),
        })
    }

    /// Changes of NICs since a revision, if there are any.
    pub fn cards_since(&self, seen: u64) -> Option<(u64, NicChanges)> {
        self.env.store.read(|model| {
            let now = model.card_revision();
            (now != seen).then(|| (now, model.cards_since(Some(seen))))
        })
    }

    /// Forgets leases of virtual machines that are on record no more; called once, at the start.
    pub async fn drop_stale_leases(&self) -> Result<(), StoreError> {
        self.env.store
            .commit(|tx| {
                let stale: Vec<Lease> = tx.before().stale_leases().cloned().collect();
                for lease in stale {
                    tracing::info!(address = %lease.address, mac = %lease.mac, "its virtual machine is gone: a lease is dropped");
                    tx.remove_lease(lease.address);
                }
                Ok(())
            })
            .await
    }

    /// Puts into the cards of a machine the addresses that they have as far as that is known: what is leased to it, else what its node
    /// says that it gave, else what is reserved for it.
    pub fn show_addresses(&self, vm: SystemUuid, node: Option<NodeId>, nics: &mut [Nic]) {
        let now = self.env.now();
        let leased: Vec<Lease> = self.env.store.read(|model| model.leases_of_vm(vm).cloned().collect());
        let told = node.map(|node| self.reported_addresses(node, vm)).unwrap_or_default();
        for nic in nics {
            let lease = leased.iter().filter(|lease| lease.mac == nic.mac && lease.expires_at > now);
            let lease = lease.max_by_key(|lease| lease.expires_at).map(|lease| lease.address);
            nic.address = lease.or_else(|| told.get(&nic.mac).copied()).or(nic.address);
        }
    }
}

/// Gives each card of a new machine what its file does not name, and looks whether the rest can be its own.
///
/// # Errors
/// All conflicts, each with the owner of the address.
pub(crate) fn reserve(
    model: &Model,
    live: &SiteSnapshot,
    spec: &mut VmSpec,
    now: Timestamp,
) -> Result<(), Vec<SpecFault>> {
    let ground = Ground { model, live, now };
    let mut faults = Vec::new();
    let mut fault = |index: usize, key: &str, message: String, hint: &str| {
        faults.push(SpecFault { key: format!("nic[{index}].{key}"), message, hint: hint.to_owned() });
    };
    let uuid = spec.uuid;
    // NICs of slots have the addresses of their slots.
    let mut macs: BTreeSet<MacAddr> = spec.nics.iter().map(|nic| nic.mac).collect();
    let mut given: BTreeSet<Ipv4Addr> = spec.nics.iter().filter_map(site_address).collect();
    for (index, nic) in spec.nics.iter_mut().enumerate().filter(|(_, nic)| !nic.slot) {
        if nic.mac == derived_mac(&MacPrefix::default(), uuid, index, 0) {
            macs.remove(&nic.mac);
            match ground.free_mac(uuid, index, &macs) {
                Some(mac) => nic.mac = mac,
                None => {
                    fault(index, "mac", "none is free of those that begin as site.toml says".to_owned(), "write one")
                }
            }
            macs.insert(nic.mac);
        } else if let Some(holder) = ground.holder_of_mac(nic.mac) {
            fault(index, "mac", format!("{} is {holder}", nic.mac), "leave it out, or write another one");
        }
        if let Some(address) = site_address(nic) {
            if let Some(holder) = ground.holder_of(address, nic.mac) {
                fault(index, "address", format!("{address} is {holder}"), "leave it out, or write another one");
            }
        } else if let Some(bridge) = nic.bridge.as_ref().filter(|bridge| bridge.as_str() != PRIVATE_BRIDGE) {
            match ground.free_address(bridge, nic.mac, &given) {
                Pooled::NoPool => {}
                Pooled::Free(address) => {
                    given.insert(address);
                    nic.address = Some(address);
                }
                Pooled::Full => {
                    let message = format!("every address of [[vms.pool]] for {bridge} is taken");
                    fault(index, "address", message, "widen it in site.toml, or delete machines");
                }
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Why a slot cannot have these addresses for its own.
pub(crate) fn against_slot(
    model: &Model,
    live: &SiteSnapshot,
    now: Timestamp,
    id: &SlotId,
    nic: SlotNic,
) -> Option<String> {
    let ground = Ground { model, live, now };
    let SlotNic { mac, address } = nic;
    if mac.is_multicast() || mac.0 == [0; 6] {
        return Some(format!("{mac} is no card's address"));
    }
    let another = |slot: Option<&SlotId>| slot.filter(|slot| *slot != id).map(|slot| format!("that of slot {slot}"));
    if let Some(holder) = ground.user_of_mac(mac, None).or_else(|| another(model.slot_of_mac(mac))) {
        return Some(format!("{mac} is {holder}"));
    }
    let address = address?;
    if !is_host_address(address) {
        return Some(format!("{address} is no machine's address"));
    }
    if let Some(holder) = ground.user_of(address, mac, None).or_else(|| another(model.slot_at(address))) {
        return Some(format!("{address} is {holder}"));
    }
    let leased = live.site.segments.iter().filter_map(|segment| segment.subnet.as_ref());
    let range = leased.into_iter().find(|range| range.contains(address))?;
    Some(format!("{address} lies in the range {}-{}, which is leased to anybody", range.first, range.last))
}

/// Whether the addresses that a machine has of its slots are still these slots' own: site.toml may have given them away since, and
/// machines may have come.
///
/// # Errors
/// All conflicts, each with the owner of the address.
pub(crate) fn check_slot_cards(
    model: &Model,
    live: &SiteSnapshot,
    vm: &Vm,
    now: Timestamp,
) -> Result<(), Vec<SpecFault>> {
    let ground = Ground { model, live, now };
    let mut faults = Vec::new();
    for (index, nic) in vm.request.spec.nics.iter().enumerate().filter(|(_, nic)| nic.slot) {
        let mac = ground.user_of_mac(nic.mac, Some(vm.uuid())).map(|holder| format!("{} is {holder}", nic.mac));
        let address = nic.address.and_then(|address| {
            ground.user_of(address, nic.mac, Some(vm.uuid())).map(|holder| format!("{address} is {holder}"))
        });
        faults.extend(mac.into_iter().chain(address).map(|message| SpecFault {
            key: format!("nic[{index}].slot"),
            message,
            hint: "approve the slot with other addresses: meshd slot approve".to_owned(),
        }));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// True if a node has a machine whose card has, in the private network there, an address that this one wants.
pub(crate) fn is_private_taken(model: &Model, node: NodeId, vm: &Vm) -> bool {
    let wanted: Vec<Ipv4Addr> = vm.request.spec.nics.iter().filter_map(private_address).collect();
    let others = || model.vms_of(node).filter(|other| other.uuid() != vm.uuid());
    !wanted.is_empty()
        && others()
            .flat_map(|other| &other.request.spec.nics)
            .filter_map(private_address)
            .any(|address| wanted.contains(&address))
}

/// The result of a search in the pools.
enum Pooled {
    NoPool,
    Free(Ipv4Addr),
    Full,
}

/// The state against which addresses are checked.
struct Ground<'a> {
    model: &'a Model,
    live: &'a SiteSnapshot,
    now: Timestamp,
}

impl Ground<'_> {
    fn holder_of_mac(&self, mac: MacAddr) -> Option<String> {
        let slot = || self.model.slot_of_mac(mac).map(|slot| format!("that of slot {slot}"));
        self.user_of_mac(mac, None).or_else(slot)
    }

    /// The holder other than this VM, without the addresses of slots.
    fn user_of_mac(&self, mac: MacAddr, beside: Option<SystemUuid>) -> Option<String> {
        let vm = || {
            let vm = self.model.vm_of_mac(mac).filter(|vm| Some(vm.uuid()) != beside)?;
            Some(format!("a card of the virtual machine {} ({})", vm.name(), vm.uuid()))
        };
        let node = || self.model.node_of_mac(mac).map(|node| format!("a card of node {}", node.id));
        let reserved =
            || self.live.reserved_for(Owner::Mac(mac)).map(|address| format!("that of a [[reservation]], {address}"));
        vm().or_else(node).or_else(reserved)
    }

    fn free_mac(&self, uuid: SystemUuid, index: usize, beside: &BTreeSet<MacAddr>) -> Option<MacAddr> {
        let prefix = &self.live.site.vms.mac_prefix;
        let mut tried = (0..ATTEMPTS).map(|attempt| derived_mac(prefix, uuid, index, attempt));
        tried.find(|mac| !beside.contains(mac) && self.holder_of_mac(*mac).is_none())
    }

    fn holder_of(&self, address: Ipv4Addr, mac: MacAddr) -> Option<String> {
        let slot = || self.model.slot_at(address).map(|slot| format!("that of slot {slot}"));
        self.user_of(address, mac, None).or_else(slot)
    }

    /// The holder other than this VM, without the addresses of slots.
    fn user_of(&self, address: Ipv4Addr, mac: MacAddr, beside: Option<SystemUuid>) -> Option<String> {
        let vm = || {
            let vm = self.model.vm_at(address).filter(|vm| Some(vm.uuid()) != beside)?;
            Some(format!("that of the virtual machine {} ({})", vm.name(), vm.uuid()))
        };
        vm().or_else(|| self.live.holder_of(address)).or_else(|| self.lessee(address, mac))
    }

    /// The holder of a lease of the address.
    fn lessee(&self, address: Ipv4Addr, mac: MacAddr) -> Option<String> {
        let lease = self.model.lease(address).filter(|lease| lease.mac != mac && lease.expires_at > self.now)?;
        let node = self.model.node_of_mac(lease.mac).map(|node| format!(" of node {}", node.id)).unwrap_or_default();
        Some(format!("leased to the card {}{node} until {}", lease.mac, lease.expires_at))
    }

    /// The next free address of a bridge's pools.
    fn free_address(&self, bridge: &InterfaceName, mac: MacAddr, beside: &BTreeSet<Ipv4Addr>) -> Pooled {
        let mut full = Pooled::NoPool;
        for pool in self.live.site.vms.pools_of(bridge) {
            full = Pooled::Full;
            let mut next = self.model.next_free_of_vms(pool.first);
            while let Some(address) = next.filter(|address| *address <= pool.last) {
                // A range may still be leased that site.toml has given up since meshd started.
                let leased = self.live.site.segments.iter().filter_map(|segment| segment.subnet.as_ref());
                let range = leased.into_iter().find(|range| range.contains(address));
                if range.is_none() && !beside.contains(&address) && self.holder_of(address, mac).is_none() {
                    return Pooled::Free(address);
                }
                let last = range.map_or(address, |range| range.last);
                next = u32::from(last).checked_add(1).and_then(|next| self.model.next_free_of_vms(next.into()));
            }
        }
        full
    }
}
