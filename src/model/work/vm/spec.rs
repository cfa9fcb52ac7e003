//! The specification of a VM for its node: the request, with the parts that the placement assigned.

use super::record::Vm;
use meshd_proto::{
    DiskIdentity,
    vm::{RawDisk, VmSpec, Volume, VolumeSource},
};

impl Vm {
    /// Returns the specification for the node: the requested one, with the assigned parts.
    pub fn spec(&self) -> VmSpec {
        VmSpec {
            units: self.assigned.units.clone(),
            volumes: self.volumes().collect(),
            nics: self.nics().collect(),
            numa_node: self.numa_node(),
            ..self.request.spec.clone()
        }
    }

    /// Returns the NUMA node to which the VM is bound, by its request or by its units.
    pub fn numa_node(&self) -> Option<u32> {
        self.request.spec.numa_node.or(self.assigned.numa_node)
    }

    /// Returns true if the VM shares CPUs with other VMs of its node; see
    /// [`VmSpec::shares_processors`].
    pub fn shares_processors(&self) -> bool {
        self.request.spec.shares_processors()
            && self.assigned.units.is_empty()
            && self.assigned.numa_node.is_none()
    }

    /// Returns the volumes, with the disks of the assigned slots.
    pub fn volumes(&self) -> impl Iterator<Item = Volume> + '_ {
        let mut disks = self.assigned.disks.iter().cloned();
        self.request.spec.volumes.iter().cloned().map(move |mut volume| {
            if let VolumeSource::Raw { disk: RawDisk::Slot(disk), .. } = &mut volume.source {
                *disk = disks.next();
            }
            volume
        })
    }

    /// Returns the known disks of the node that the VM uses.
    pub fn used_disks(&self) -> impl Iterator<Item = DiskIdentity> + '_ {
        self.volumes().filter_map(|volume| volume.source.disk()?.identity().cloned())
    }
}
