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

/// Resources that are promised to VMs which run or will run.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    specs: Arc<Mutex<BTreeMap<SystemUuid, Reservation>>>,
    slots: Arc<Mutex<Vec<SlotDisk>>>,
    /// Addresses that the private network assigned, by MAC address.
    addresses: Arc<Mutex<NicAddresses>>,
}

#[derive(Debug)]
struct Reservation {
    spec: VmSpec,
    /// Memory that the layers of a planned VM will need, until the layers exist.
    growth: u64,
}

/// Name of the placeholder for a VM that is being released.
const LEAVING: &str = "being-released";

/// Reserves the disks of a VM that is being released; dropping it frees them.
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

    /// Sets the addresses of NICs in the private network.
    pub fn set_addresses(&self, given: NicAddresses) {
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = given;
    }

    /// Returns the addresses of NICs in the private network.
    pub fn addresses(&self) -> NicAddresses {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the specifications of all VMs with reservations.
    pub fn specs(&self) -> Vec<VmSpec> {
        self.with(|all| all.values().map(|given| given.spec.clone()).collect())
    }

    /// Sets the disks that belong to slots.
    pub fn set_slots(&self, slots: Vec<SlotDisk>) {
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// Returns the disks that belong to slots.
    pub fn slots(&self) -> Vec<SlotDisk> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Plans a VM beside the others and reserves its resources.
    ///
    /// # Errors
    /// Every reason against it.
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

    /// Checks that no other VM has a disk.
    ///
    /// # Errors
    /// The VM that has it.
    pub fn is_free(&self, uuid: SystemUuid, disk: &DiskFacts) -> Result<(), String> {
        let has = |spec: &&VmSpec| spec.disks().any(|own| disk.names().any(|name| name == own.as_str()));
        self.with(|all| match all.values().map(|given| &given.spec).filter(|spec| spec.uuid != uuid).find(has) {
            Some(other) => Err(format!("disk {} belongs to {}", disk.name, other.name)),
            None => Ok(()),
        })
    }

    /// Reserves the disks of a released VM until the returned value is dropped.
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

    /// Reserves the resources of a VM that runs already.
    pub fn insert(&self, spec: &VmSpec) {
        self.with(|all| all.insert(spec.uuid, Reservation { spec: spec.clone(), growth: 0 }));
    }

    /// Frees the resources of a VM.
    pub fn remove(&self, uuid: SystemUuid) {
        self.with(|all| all.remove(&uuid));
    }

    /// Returns the bytes of memory that no VM was promised.
    pub fn left(&self, mut memory: Memory) -> u64 {
        self.with(|all| {
            counted(all, &mut memory);
            memory.left(all.values().map(|given| &given.spec))
        })
    }
}

impl Reservations {
    /// Returns the maximum size of a store in memory: current use, free memory, and the growth that was counted ahead.
    pub fn store(&self, mut memory: Memory, used: u64) -> u64 {
        self.with(|all| {
            counted(all, &mut memory);
            let ahead =
                all.keys().filter_map(|uuid| memory.growth.get(uuid)).fold(used, |sum, more| sum.saturating_add(*more));
            memory.left(all.values().map(|given| &given.spec)).saturating_add(ahead)
        })
    }
}

/// Counts planned layers that do not exist yet.
fn counted(all: &BTreeMap<SystemUuid, Reservation>, memory: &mut Memory) {
    for (uuid, given) in all {
        memory.growth.entry(*uuid).or_insert(given.growth);
    }
}
