//! What this machine is, read from sysfs and procfs below a root. No external program, no root rights but for the serials,
//! and total: a machine that shows nothing gives empty facts.

mod addresses;
mod devices;
mod machine;
pub mod source;
mod tree;

pub use tree::Tree;

pub(super) use addresses::by_interface;
pub(super) use devices::{all_pci, nics};
pub(super) use machine::{cpu, kernel_boot_id, memory, memory_field};

use super::{disks, slots, units, version, vm};
use crate::{
    id::Hardware,
    wire::{AgentConfig, BootPart, Facts, Heartbeat, Resources, Versions},
};
use std::path::Path;

/// Everything that a node reports at connection; `vms` is the folder of virtual machines.
pub fn collect(tree: &Tree, vms: &Path, config: Option<&AgentConfig>, boot: Option<&BootPart>) -> Facts {
    let Resources { units, disks, slots, store, hosting } = config
        .map(|config| resources(tree, vms, config))
        .unwrap_or_else(|| Resources { disks: disks::survey(tree, &[]), ..Resources::default() });
    Facts {
        system: machine::system(tree),
        cpu: machine::cpu(tree),
        memory: machine::memory(tree),
        pci: devices::pci(tree),
        disks,
        nics: devices::nics(tree),
        units,
        slots,
        store,
        hosting,
        versions: Versions {
            agent: version().to_owned(),
            kernel: tree.read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            os: machine::os(tree),
            session: boot.map(|boot| boot.session),
            generation: boot.map(|boot| boot.generation.clone()).unwrap_or_default(),
            profile: config.map(|config| config.profile.clone()).unwrap_or_default(),
        },
    }
}

/// What it has to give now, as its profile wants it.
pub(super) fn resources(tree: &Tree, vms: &Path, config: &AgentConfig) -> Resources {
    let units = units::survey(tree, &config.vfio, &units::Linux(tree));
    let disks = disks::survey(tree, &config.data_disks);
    let slots = slots::candidates(tree, &units, &disks);
    // Nobody is asked anything here that may take its time.
    let hosting = Some(Box::new(vm::hosting(tree, false)));
    Resources { units, disks, slots, store: vm::store(vms), hosting }
}

/// What the node ID is derived from, as this machine sees itself.
pub fn hardware(tree: &Tree) -> Hardware {
    let system = machine::system(tree);
    Hardware {
        uuid: system.uuid,
        manufacturer: system.manufacturer,
        product: system.product,
        serial: system.serial,
        macs: devices::nics(tree).into_iter().filter_map(|nic| nic.mac).collect(),
    }
}

/// A sign of life.
pub fn heartbeat(tree: &Tree) -> Heartbeat {
    let storage = rustix::fs::statvfs(tree.path("/")).ok();
    Heartbeat {
        uptime_s: machine::uptime(tree),
        memory_available_kib: machine::memory(tree).available_kib,
        storage_free_bytes: storage.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
        workloads: 0,
    }
}

#[cfg(test)]
mod tests;
