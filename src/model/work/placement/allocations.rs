//! Sums of the resources that VMs hold on one node, so that a placement does not read every VM.

use crate::work::Vm;
use meshd_proto::vm::{DiskIdentity, VmSpec};
use meshd_types::{PciAddress, SystemUuid};
use std::collections::BTreeMap;

/// What machines have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatedResources {
    /// Memory, in bytes, without huge pages.
    pub memory: u64,
    /// Memory of huge pages, in bytes.
    pub hugepages: u64,
    /// Virtual processors that share the node's threads with others.
    pub shared: u64,
    /// Virtual processors of those that share none: see [`VmSpec::shares_processors`].
    pub alone: u64,
}

impl AllocatedResources {
    const NOTHING: AllocatedResources = AllocatedResources { memory: 0, hugepages: 0, shared: 0, alone: 0 };

    fn of(spec: &VmSpec) -> Self {
        let (memory, vcpus) = (spec.node_memory(), u64::from(spec.vcpus));
        let hugepages = if spec.hugepages { spec.memory.bytes() } else { 0 };
        let (shared, alone) = if spec.shares_processors() { (vcpus, 0) } else { (0, vcpus) };
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

/// What the virtual machines of one node have of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Which there are, with what each has, and the NUMA node that it is bound to.
    vms: BTreeMap<SystemUuid, (AllocatedResources, Option<u32>)>,
    /// Of all.
    all: AllocatedResources,
    /// Of those that are bound to a NUMA node.
    bound: BTreeMap<u32, AllocatedResources>,
    /// One function of each unit, and whose it is.
    units: BTreeMap<PciAddress, SystemUuid>,
    /// Whole disks, and whose they are.
    disks: BTreeMap<DiskIdentity, SystemUuid>,
}

impl Allocations {
    /// Nothing is held.
    pub const fn none() -> Self {
        Allocations {
            vms: BTreeMap::new(),
            all: AllocatedResources::NOTHING,
            bound: BTreeMap::new(),
            units: BTreeMap::new(),
            disks: BTreeMap::new(),
        }
    }

    /// One more is on the node; it takes the place of what was held by the same UUID.
    pub fn add(&mut self, vm: &Vm) {
        self.remove(vm.uuid());
        let spec = &vm.ask.spec;
        let (sum, bound) = (AllocatedResources::of(spec), spec.numa_node);
        self.all = self.all.join(sum, u64::saturating_add);
        if let Some(node) = bound {
            let before = self.bound.entry(node).or_default();
            *before = before.join(sum, u64::saturating_add);
        }
        self.vms.insert(spec.uuid, (sum, bound));
        self.units.extend(spec.units.iter().map(|unit| (unit.clone(), spec.uuid)));
        self.disks.extend(spec.disks().map(|disk| (disk.clone(), spec.uuid)));
    }

    /// One that is not on the node any more left disks there that are not clean.
    pub fn owe<'a>(&mut self, uuid: SystemUuid, disks: impl IntoIterator<Item = &'a DiskIdentity>) {
        self.disks.extend(disks.into_iter().map(|disk| (disk.clone(), uuid)));
    }

    /// Nothing of one is on the node any more.
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

    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty() && self.disks.is_empty()
    }

    /// Whose it all is.
    pub fn vms(&self) -> impl ExactSizeIterator<Item = SystemUuid> + '_ {
        self.vms.keys().copied()
    }

    /// What all of them have.
    pub fn all(&self) -> &AllocatedResources {
        &self.all
    }

    /// What those have that are bound to a NUMA node.
    pub fn bound(&self, node: u32) -> AllocatedResources {
        self.bound.get(&node).copied().unwrap_or_default()
    }

    /// What those have that are bound to none, in bytes: ordinary memory and huge pages.
    pub fn roaming(&self) -> (u64, u64) {
        let bound =
            self.bound.values().fold(AllocatedResources::NOTHING, |sum, one| sum.join(*one, u64::saturating_add));
        let free = self.all.join(bound, u64::saturating_sub);
        (free.memory, free.hugepages)
    }

    /// Who has a unit, by any function of it.
    pub fn unit<'a>(&self, mut functions: impl Iterator<Item = &'a str>) -> Option<SystemUuid> {
        if self.units.is_empty() {
            return None;
        }
        let of =
            |function: &str| self.units.iter().find(|(unit, _)| unit.as_str() == function).map(|(_, owner)| *owner);
        functions.find_map(of)
    }

    /// Who has a disk, by any name of it.
    pub fn disk<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Option<SystemUuid> {
        if self.disks.is_empty() {
            return None;
        }
        names.find_map(|name| self.disks.iter().find(|(disk, _)| disk.as_str() == name).map(|(_, owner)| *owner))
    }

    /// How many units are given away.
    pub fn unit_count(&self) -> usize {
        self.units.len()
    }
}
