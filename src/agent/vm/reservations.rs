//! Resources of the node that are promised to VMs: memory, units, disks, addresses.

use super::{
    host::{memory::Memory, resources},
    net::nic_addresses::NicAddresses,
    spec::plan,
};
use meshd_proto::{
    DiskFacts,
    vm::{DiskIdentity, RawDisk, SlotDisk, VmRefusal, VmSpec, Volume, VolumeSource},
};
use meshd_types::SystemUuid;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The machines of a node that are live or shall be, whose memory, disks and units are not free.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    specs: Arc<Mutex<BTreeMap<SystemUuid, Reservation>>>,
    slots: Arc<Mutex<Vec<SlotDisk>>>,
    /// Addresses that the private network gave, by card.
    addresses: Arc<Mutex<NicAddresses>>,
}

#[derive(Debug)]
struct Reservation {
    spec: VmSpec,
    /// Bytes of memory that its layers will take, as long as they are not there to be looked at.
    growth: u64,
}

/// What stands for a machine that is being released.
const LEAVING: &str = "being-released";

/// Disks that somebody leaves.
#[derive(Debug)]
pub struct ReleaseHold {
    reservations: Reservations,
    uuid: SystemUuid,
}

impl Drop for ReleaseHold {
    fn drop(&mut self) {
        self.reservations.remove(self.uuid);
    }
}

impl Reservations {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<SystemUuid, Reservation>) -> T) -> T {
        look(&mut self.specs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Addresses of cards of the private network, from now on.
    pub fn set_addresses(&self, given: NicAddresses) {
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = given;
    }

    /// Addresses of cards of the private network.
    pub fn addresses(&self) -> NicAddresses {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All machines that are live or shall be.
    pub fn specs(&self) -> Vec<VmSpec> {
        self.with(|all| all.values().map(|given| given.spec.clone()).collect())
    }

    /// Disks that belong to slots, from now on.
    pub fn set_slots(&self, slots: Vec<SlotDisk>) {
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// Disks that belong to slots.
    pub fn slots(&self) -> Vec<SlotDisk> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a machine in if the node can run it beside the others.
    ///
    /// # Errors
    /// Everything that stands against it.
    pub fn take(&self, spec: &VmSpec, host: &resources::HostResources) -> Result<plan::Plan, Vec<VmRefusal>> {
        self.with(|all| {
            let mut host = resources::HostResources { slots: self.slots(), ..host.clone() };
            counted(all, &mut host.memory);
            let others: Vec<&VmSpec> =
                all.values().map(|given| &given.spec).filter(|it| it.uuid != spec.uuid).collect();
            let plan = plan::plan(spec, &host, &others)?;
            all.insert(spec.uuid, Reservation { spec: spec.clone(), growth: plan.growth });
            Ok(plan)
        })
    }

    /// Whether no other machine has a disk.
    ///
    /// # Errors
    /// Who has it.
    pub fn is_free(&self, uuid: SystemUuid, disk: &DiskFacts) -> Result<(), String> {
        let has = |spec: &&VmSpec| spec.disks().any(|own| disk.names().any(|name| name == own.as_str()));
        self.with(|all| match all.values().map(|given| &given.spec).filter(|spec| spec.uuid != uuid).find(has) {
            Some(other) => Err(format!("disk {} belongs to {}", disk.name, other.name)),
            None => Ok(()),
        })
    }

    /// Keeps disks from others until what is given back is dropped: who had them leaves them.
    pub fn leaving<'a>(&self, uuid: SystemUuid, disks: impl Iterator<Item = &'a DiskIdentity>) -> ReleaseHold {
        let mut spec = VmSpec::unknown(LEAVING.parse().expect("it is a name"), uuid);
        let volume = |(number, disk): (usize, &DiskIdentity)| Volume {
            name: format!("disk{number}").parse().expect("it is a name"),
            source: VolumeSource::Raw {
                disk: RawDisk::Named(disk.clone()),
                digest: None,
                overwrite: false,
                adopt: false,
                on_release: None,
            },
        };
        spec.volumes = disks.enumerate().map(volume).collect();
        self.insert(&spec);
        ReleaseHold { reservations: self.clone(), uuid }
    }

    /// Takes a machine in that runs already.
    pub fn insert(&self, spec: &VmSpec) {
        self.with(|all| all.insert(spec.uuid, Reservation { spec: spec.clone(), growth: 0 }));
    }

    /// It needs nothing any more.
    pub fn remove(&self, uuid: SystemUuid) {
        self.with(|all| all.remove(&uuid));
    }

    /// Bytes of a node's memory that nobody was promised.
    pub fn left(&self, mut memory: Memory) -> u64 {
        self.with(|all| {
            counted(all, &mut memory);
            memory.left(all.values().map(|given| &given.spec))
        })
    }
}

impl Reservations {
    /// Bytes that may be in the store when it lies in memory: what is there, what is left, and what was counted ahead.
    pub fn store(&self, mut memory: Memory, used: u64) -> u64 {
        self.with(|all| {
            counted(all, &mut memory);
            let ahead =
                all.keys().filter_map(|uuid| memory.growth.get(uuid)).fold(used, |sum, more| sum.saturating_add(*more));
            memory.left(all.values().map(|given| &given.spec)).saturating_add(ahead)
        })
    }
}

/// Layers that are planned and not made yet are counted as well.
fn counted(all: &BTreeMap<SystemUuid, Reservation>, memory: &mut Memory) {
    for (uuid, given) in all {
        memory.growth.entry(*uuid).or_insert(given.growth);
    }
}
