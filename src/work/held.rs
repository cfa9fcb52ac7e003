//! What is given away of one node, summed up, so that a placement need not look at every machine on record.

use super::Vm;
use crate::id::{PciAddress, SystemUuid};
use crate::wire::vm::{DiskIdentity, VolumeSource};
use std::collections::BTreeMap;

/// What the virtual machines of one node have of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many there are, by UUID, with what each has.
    vms: BTreeMap<SystemUuid, Share>,
    /// Memory, in bytes.
    memory: u64,
    /// Memory of huge pages, in bytes.
    hugepages: u64,
    /// Virtual processors.
    vcpus: u64,
    /// One function of each unit, and whose it is.
    units: BTreeMap<PciAddress, SystemUuid>,
    /// Whole disks, and whose they are.
    disks: BTreeMap<DiskIdentity, SystemUuid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    memory: u64,
    hugepages: u64,
    vcpus: u64,
}

impl Held {
    /// Nothing is held.
    pub const fn none() -> Self {
        Held { vms: BTreeMap::new(), memory: 0, hugepages: 0, vcpus: 0, units: BTreeMap::new(), disks: BTreeMap::new() }
    }

    /// One more is on the node; it takes the place of what was held by the same UUID.
    pub fn add(&mut self, vm: &Vm) {
        self.remove(vm.uuid());
        let spec = &vm.ask.spec;
        let bytes = spec.memory.bytes();
        let (memory, hugepages) = if spec.hugepages { (0, bytes) } else { (bytes, 0) };
        let share = Share { memory, hugepages, vcpus: spec.vcpus.into() };
        self.memory = self.memory.saturating_add(share.memory);
        self.hugepages = self.hugepages.saturating_add(share.hugepages);
        self.vcpus = self.vcpus.saturating_add(share.vcpus);
        self.vms.insert(spec.uuid, share);
        self.units.extend(spec.units.iter().map(|unit| (unit.clone(), spec.uuid)));
        let disks = spec.volumes.iter().filter_map(|volume| match &volume.source {
            VolumeSource::Raw { disk } => Some((disk.clone(), spec.uuid)),
            _ => None,
        });
        self.disks.extend(disks);
    }

    /// Nothing of one is on the node any more.
    pub fn remove(&mut self, uuid: SystemUuid) {
        let Some(share) = self.vms.remove(&uuid) else { return };
        self.memory = self.memory.saturating_sub(share.memory);
        self.hugepages = self.hugepages.saturating_sub(share.hugepages);
        self.vcpus = self.vcpus.saturating_sub(share.vcpus);
        self.units.retain(|_, owner| *owner != uuid);
        self.disks.retain(|_, owner| *owner != uuid);
    }

    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty()
    }

    /// Whose it all is.
    pub fn vms(&self) -> impl ExactSizeIterator<Item = SystemUuid> + '_ {
        self.vms.keys().copied()
    }

    /// Memory that is promised, in bytes, without huge pages.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Memory of huge pages that is promised, in bytes.
    pub fn hugepages(&self) -> u64 {
        self.hugepages
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
