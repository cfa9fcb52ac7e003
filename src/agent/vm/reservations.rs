//! Resources of the node that are reserved for VMs: memory, units, disks, addresses.

use super::{
    host::{
        capacity,
        config::HostConfig,
        memory::{self, Memory},
        resources,
    },
    lock_helpers::locked,
    net::nic_addresses::NicAddresses,
    spec::plan,
};
use crate::system::Tree;
use meshd_proto::{
    DiskFacts, DiskIdentity,
    vm::{RawDisk, SlotDisk, VmRefusal, VmSpec, Volume, VolumeSource},
};
use meshd_types::SystemUuid;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Resources that are reserved for VMs which run or will run. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    vms: Arc<Mutex<BTreeMap<SystemUuid, Reservation>>>,
    slots: Arc<Mutex<Vec<SlotDisk>>>,
    addresses: Arc<Mutex<NicAddresses>>,
}

#[derive(Debug)]
struct Reservation {
    spec: VmSpec,
    /// Memory that the layers of a planned VM will need, until the layers exist.
    growth: u64,
}

/// Name of the placeholder for a VM that is being released.
const RELEASING: &str = "being-released";

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
    /// Sets the addresses of NICs in the private network.
    pub fn set_addresses(&self, addresses: NicAddresses) {
        *locked(&self.addresses) = addresses;
    }

    pub fn addresses(&self) -> NicAddresses {
        locked(&self.addresses).clone()
    }

    pub fn specs(&self) -> Vec<VmSpec> {
        locked(&self.vms).values().map(|vm| vm.spec.clone()).collect()
    }

    /// Sets the disks that belong to slots.
    pub fn set_slots(&self, slots: Vec<SlotDisk>) {
        *locked(&self.slots) = slots;
    }

    /// Plans a VM beside the others and reserves its resources.
    pub fn reserve(
        &self,
        spec: &VmSpec,
        host: &resources::HostResources,
    ) -> Result<plan::Plan, Vec<VmRefusal>> {
        let slots = locked(&self.slots).clone();
        let mut vms = locked(&self.vms);
        let mut host = resources::HostResources { slots, ..host.clone() };
        add_planned_growth(&vms, &mut host.memory);
        let others: Vec<&VmSpec> =
            vms.values().map(|vm| &vm.spec).filter(|other| other.uuid != spec.uuid).collect();
        let plan = plan::plan(spec, &host, &others)?;
        vms.insert(spec.uuid, Reservation { spec: spec.clone(), growth: plan.growth });
        Ok(plan)
    }

    /// Checks that no other VM has a disk.
    pub fn check_disk_is_free(&self, uuid: SystemUuid, disk: &DiskFacts) -> Result<(), String> {
        let has_disk = |spec: &&VmSpec| {
            spec.disks().any(|own| disk.identities().any(|name| name == own.as_str()))
        };
        let vms = locked(&self.vms);
        match vms.values().map(|vm| &vm.spec).filter(|spec| spec.uuid != uuid).find(has_disk) {
            Some(owner) => Err(format!("disk {} belongs to {}", disk.name, owner.name)),
            None => Ok(()),
        }
    }

    /// Reserves the disks of a released VM until the returned value is dropped.
    pub fn hold_disks<'a>(
        &self,
        uuid: SystemUuid,
        disks: impl Iterator<Item = &'a DiskIdentity>,
    ) -> ReleaseHold {
        let mut spec = VmSpec::unknown(RELEASING.parse().expect("a name"), uuid);
        let volume = |(number, disk): (usize, &DiskIdentity)| Volume {
            name: format!("disk{number}").parse().expect("a name"),
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
        locked(&self.vms).insert(spec.uuid, Reservation { spec: spec.clone(), growth: 0 });
    }

    pub fn remove(&self, uuid: SystemUuid) {
        locked(&self.vms).remove(&uuid);
    }

    /// Returns the bytes of memory that are not reserved.
    pub fn free_memory(&self, mut memory: Memory) -> u64 {
        let vms = locked(&self.vms);
        add_planned_growth(&vms, &mut memory);
        memory.free_beside(vms.values().map(|vm| &vm.spec))
    }

    /// Limits a store in memory to the memory that is free now.
    pub async fn limit_store(&self, config: &Arc<HostConfig>) {
        let config = config.clone();
        let reservations = self.clone();
        let limited = tokio::task::spawn_blocking(move || {
            let tree = Tree::new(&config.root);
            let machines = &config.vms_dir;
            let used = capacity::space(machines)?.used;
            capacity::limit_store(
                machines,
                &tree,
                reservations.store_limit(memory::read(&tree, machines), used),
            )
        });
        if let Err(error) = limited.await.map_err(std::io::Error::other).and_then(|result| result) {
            tracing::debug!(%error, "cannot limit the store");
        }
    }

    /// Returns the maximum size of a store in memory: current use, free memory and the expected
    /// growth of the layers.
    pub fn store_limit(&self, mut memory: Memory, used: u64) -> u64 {
        let vms = locked(&self.vms);
        add_planned_growth(&vms, &mut memory);
        let growth = vms.keys().filter_map(|uuid| memory.growth.get(uuid));
        let free = memory.free_beside(vms.values().map(|vm| &vm.spec));
        growth.fold(used, |sum, more| sum.saturating_add(*more)).saturating_add(free)
    }
}

/// Counts planned layers that do not exist yet.
fn add_planned_growth(vms: &BTreeMap<SystemUuid, Reservation>, memory: &mut Memory) {
    for (uuid, vm) in vms {
        memory.growth.entry(*uuid).or_insert(vm.growth);
    }
}
