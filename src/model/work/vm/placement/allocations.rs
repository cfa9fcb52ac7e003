//! Sums of the resources that VMs and replicas of containers hold on one node, so that a placement
//! does not read every record.

use crate::work::Vm;
use meshd_proto::{
    DiskIdentity,
    container::{ReplicaId, ReplicaSpec},
};
use meshd_types::{PciAddress, SystemUuid};
use std::collections::BTreeMap;

/// Sums of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatedResources {
    /// Memory without huge pages, in bytes.
    pub memory: u64,
    /// Memory in huge pages, in bytes.
    pub hugepages: u64,
    /// vCPUs that share threads.
    pub shared: u64,
    /// Dedicated vCPUs; see [`Vm::shares_processors`].
    pub alone: u64,
}

impl AllocatedResources {
    const NOTHING: AllocatedResources =
        AllocatedResources { memory: 0, hugepages: 0, shared: 0, alone: 0 };

    fn of(vm: &Vm) -> Self {
        let spec = &vm.request.spec;
        let memory = spec.node_memory();
        let vcpus = u64::from(spec.vcpus);
        let hugepages = if spec.hugepages { spec.memory.bytes() } else { 0 };
        let (shared, alone) = if vm.shares_processors() { (vcpus, 0) } else { (0, vcpus) };
        AllocatedResources { memory, hugepages, shared, alone }
    }

    fn join(self, other: AllocatedResources, with: fn(u64, u64) -> u64) -> Self {
        AllocatedResources {
            memory: with(self.memory, other.memory),
            hugepages: with(self.hugepages, other.hugepages),
            shared: with(self.shared, other.shared),
            alone: with(self.alone, other.alone),
        }
    }
}

/// Resources of a replica of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReplicaResources {
    /// In bytes.
    memory: u64,
    /// Thousandths of a CPU.
    cpu_millis: u64,
    /// Published ports of the node.
    ports: Vec<u16>,
}

/// Resources that the VMs and replicas of one node hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Resources of each VM, and the NUMA node to which it is bound.
    vms: BTreeMap<SystemUuid, (AllocatedResources, Option<u32>)>,
    /// Resources of each replica of a container.
    replicas: BTreeMap<ReplicaId, ReplicaResources>,
    /// Sum of all replicas: ordinary memory, and CPUs that share threads.
    of_replicas: AllocatedResources,
    /// Sum of all VMs and replicas.
    all: AllocatedResources,
    /// Sums of the VMs bound to each NUMA node.
    bound: BTreeMap<u32, AllocatedResources>,
    /// First function of each assigned unit, with its owner.
    units: BTreeMap<PciAddress, SystemUuid>,
    /// Assigned disks, with their owners.
    disks: BTreeMap<DiskIdentity, SystemUuid>,
}

impl Allocations {
    pub const fn none() -> Self {
        Allocations {
            vms: BTreeMap::new(),
            replicas: BTreeMap::new(),
            of_replicas: AllocatedResources::NOTHING,
            all: AllocatedResources::NOTHING,
            bound: BTreeMap::new(),
            units: BTreeMap::new(),
            disks: BTreeMap::new(),
        }
    }

    /// Adds a VM; replaces an earlier entry of its UUID.
    pub fn add(&mut self, vm: &Vm) {
        self.remove(vm.uuid());
        let sum = AllocatedResources::of(vm);
        let bound = vm.numa_node();
        let uuid = vm.uuid();
        self.all = self.all.join(sum, u64::saturating_add);
        if let Some(node) = bound {
            let before = self.bound.entry(node).or_default();
            *before = before.join(sum, u64::saturating_add);
        }
        self.vms.insert(uuid, (sum, bound));
        self.units.extend(vm.assigned.units.iter().map(|unit| (unit.clone(), uuid)));
        self.disks.extend(vm.used_disks().map(|disk| (disk, uuid)));
    }

    /// Adds disks that a departed VM left unwiped.
    pub fn owe<'a>(&mut self, uuid: SystemUuid, disks: impl IntoIterator<Item = &'a DiskIdentity>) {
        self.disks.extend(disks.into_iter().map(|disk| (disk.clone(), uuid)));
    }

    /// Removes a VM and its disks.
    pub fn remove(&mut self, uuid: SystemUuid) {
        self.disks.retain(|_, owner| *owner != uuid);
        let Some((sum, bound)) = self.vms.remove(&uuid) else { return };
        self.all = self.all.join(sum, u64::saturating_sub);
        if let Some(node) = bound
            && let Some(before) = self.bound.get_mut(&node)
        {
            *before = before.join(sum, u64::saturating_sub);
            if *before == AllocatedResources::NOTHING {
                self.bound.remove(&node);
            }
        }
        self.units.retain(|_, owner| *owner != uuid);
    }

    /// Adds a replica of a container; replaces an earlier entry of its ID.
    pub fn add_replica(&mut self, id: ReplicaId, spec: &ReplicaSpec) {
        let resources = ReplicaResources {
            memory: spec.memory().bytes(),
            cpu_millis: spec.cpu_millis.into(),
            ports: spec.ports.iter().map(|port| port.node).collect(),
        };
        self.replicas.insert(id, resources);
        self.sum_replicas();
    }

    /// Removes a replica of a container.
    pub fn remove_replica(&mut self, id: &ReplicaId) {
        self.replicas.remove(id);
        self.sum_replicas();
    }

    /// CPU time is rounded up once for all replicas, not for each.
    fn sum_replicas(&mut self) {
        let millis: u64 = self.replicas.values().map(|replica| replica.cpu_millis).sum();
        let memory = self.replicas.values().map(|replica| replica.memory).sum();
        let sum = AllocatedResources {
            memory,
            shared: millis.div_ceil(1000),
            ..AllocatedResources::NOTHING
        };
        self.all = self.all.join(self.of_replicas, u64::saturating_sub);
        self.all = self.all.join(sum, u64::saturating_add);
        self.of_replicas = sum;
    }

    /// Returns the IDs of all replicas.
    pub fn replicas(&self) -> impl ExactSizeIterator<Item = &ReplicaId> {
        self.replicas.keys()
    }

    /// Returns the replica that publishes a port of the node.
    pub fn port_owner(&self, port: u16) -> Option<&ReplicaId> {
        let mut all = self.replicas.iter();
        all.find(|(_, replica)| replica.ports.contains(&port)).map(|(id, _)| id)
    }

    /// Returns true if nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty() && self.disks.is_empty() && self.replicas.is_empty()
    }

    /// Returns the UUIDs of all VMs.
    pub fn vms(&self) -> impl ExactSizeIterator<Item = SystemUuid> + '_ {
        self.vms.keys().copied()
    }

    /// Returns the sum of all VMs and replicas.
    pub fn all(&self) -> &AllocatedResources {
        &self.all
    }

    /// Returns the sum of the VMs that are bound to a NUMA node.
    pub fn bound(&self, node: u32) -> AllocatedResources {
        self.bound.get(&node).copied().unwrap_or_default()
    }

    /// Returns the memory of the VMs that are not bound: ordinary memory and huge pages, in bytes.
    pub fn roaming(&self) -> (u64, u64) {
        let bound = self
            .bound
            .values()
            .fold(AllocatedResources::NOTHING, |sum, one| sum.join(*one, u64::saturating_add));
        let free = self.all.join(bound, u64::saturating_sub);
        (free.memory, free.hugepages)
    }

    /// Returns the owner of a unit, by any of its functions.
    pub fn unit<'a>(&self, mut functions: impl Iterator<Item = &'a str>) -> Option<SystemUuid> {
        if self.units.is_empty() {
            return None;
        }
        let of = |function: &str| {
            self.units.iter().find(|(unit, _)| unit.as_str() == function).map(|(_, owner)| *owner)
        };
        functions.find_map(of)
    }

    /// Returns the owner of a disk, by any of its names.
    pub fn disk<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Option<SystemUuid> {
        if self.disks.is_empty() {
            return None;
        }
        names.find_map(|name| {
            self.disks.iter().find(|(disk, _)| disk.as_str() == name).map(|(_, owner)| *owner)
        })
    }

    /// Returns the number of assigned units.
    pub fn unit_count(&self) -> usize {
        self.units.len()
    }
}
