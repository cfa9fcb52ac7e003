//! Facts about this machine, read from sysfs and procfs below a root, without external programs. What cannot be read is absent.
//!
//! `slots` suggests the disk and the fabric device of each unit.

mod slots;

use super::{
    disks,
    system::{self, Tree, source},
    version, vm,
};
use crate::vfio;
use meshd_proto::{AgentConfig, BootPart, Facts, Heartbeat, Resources, Versions};
use meshd_types::Hardware;
use std::{path::Path, time::Instant};

/// Collects the facts of a hello; `vms` is the folder of virtual machines. A source that exceeds its deadline is
/// absent.
pub fn collect(tree: &Tree, vms: &Path, config: Option<&AgentConfig>, boot: Option<&BootPart>) -> Facts {
    collect_again(tree, vms, config, boot, &Facts::default())
}

/// Collects the facts of a hello. A source that exceeds its deadline keeps its value of `last`.
pub fn collect_again(
    tree: &Tree,
    vms: &Path,
    config: Option<&AgentConfig>,
    boot: Option<&BootPart>,
    last: &Facts,
) -> Facts {
    let deadline = Instant::now() + source::DEADLINE;
    let base = source::read(tree, "machine", |tree| {
        (system::machine::system(tree), system::machine::cpu(tree), system::machine::memory(tree))
    });
    let (pci, nics) =
        (source::read(tree, "pci", system::devices::pci), source::read(tree, "nics", system::devices::nics));
    let before = Resources {
        units: last.units.clone(),
        store: last.store,
        hosting: last.hosting.clone(),
        ..Resources::default()
    };
    let Resources { units, disks, slots, store, hosting } = config
        .map(|config| resources_again(tree, vms, config, before))
        .unwrap_or_else(|| Resources { disks: disks::survey(tree, &[]), ..Resources::default() });
    let (own, cpu, memory) =
        value_or(base.by(deadline), || (last.system.clone(), last.cpu.clone(), last.memory.clone()));
    Facts {
        system: own,
        cpu,
        memory,
        pci: value_or(pci.by(deadline), || last.pci.clone()),
        disks,
        nics: value_or(nics.by(deadline), || last.nics.clone()),
        units,
        slots,
        store,
        hosting,
        versions: Versions {
            agent: version().to_owned(),
            kernel: tree.read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            os: system::machine::os(tree),
            session: boot.map(|boot| boot.session),
            generation: boot.map(|boot| boot.generation.clone()).unwrap_or_default(),
            profile: config.map(|config| config.profile.clone()).unwrap_or_default(),
        },
    }
}

/// Collects the resources that the node offers under its profile.
pub(super) fn resources(tree: &Tree, vms: &Path, config: &AgentConfig) -> Resources {
    resources_again(tree, vms, config, Resources::default())
}

/// Collects the resources. A source that exceeds its deadline keeps its former value.
fn resources_again(tree: &Tree, vms: &Path, config: &AgentConfig, before: Resources) -> Resources {
    let deadline = Instant::now() + source::DEADLINE;
    let (vfio, folder) = (config.vfio.clone(), vms.to_owned());
    let units = source::read(tree, "units", move |tree| vfio::survey(tree, &vfio, &vfio::LinuxKernel(tree)));
    let store = source::read(tree, "store", move |_| vm::store(&folder));
    // Nothing here may block.
    let hosting = source::read(tree, "hosting", |tree| vm::hosting(tree, false));
    let disks = disks::survey(tree, &config.data_disks);
    let units = value_or(units.by(deadline), || before.units);
    let slots = slots::candidates(tree, &units, &disks);
    let store = value_or(store.by(deadline), || before.store);
    let hosting = hosting.by(deadline).map(Box::new).ok().or(before.hosting);
    Resources { units, disks, slots, store, hosting }
}

/// Returns the value of a source, or its replacement.
fn value_or<T>(read: Result<T, source::Late>, before: impl FnOnce() -> T) -> T {
    read.unwrap_or_else(|late| {
        tracing::warn!(kind = std::any::type_name::<T>(), %late, "a source of facts is left out");
        before()
    })
}

/// The hardware identity from which the node ID is derived, read from sysfs.
pub fn hardware(tree: &Tree) -> Hardware {
    let own = system::machine::system(tree);
    Hardware {
        uuid: own.uuid,
        manufacturer: own.manufacturer,
        product: own.product,
        serial: own.serial,
        macs: system::devices::nics(tree).into_iter().filter_map(|nic| nic.mac).collect(),
    }
}

/// Collects the content of a heartbeat.
pub fn heartbeat(tree: &Tree) -> Heartbeat {
    let storage = rustix::fs::statvfs(tree.path("/")).ok();
    Heartbeat {
        uptime_s: system::machine::uptime(tree),
        memory_available_kib: system::machine::memory(tree).available_kib,
        storage_free_bytes: storage.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
        workloads: 0,
    }
}

#[cfg(test)]
mod tests;
