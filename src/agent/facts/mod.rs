//! Facts about this machine, read from sysfs and procfs. Only `gpu_usage` and the version
//! of the container runtime run a program. Unreadable facts are absent.
//!
//! | module | content |
//! | --- | --- |
//! | `drain_hooks` | drain hooks of the overlays |
//! | `gpu_usage` | utilisation of GPUs, from the host's driver |
//! | `slots` | suggests the disk and the fabric device of each unit |
//! | `usage` | utilisation of processors, memory, file systems, NICs |

mod drain_hooks;
mod gpu_usage;
mod slots;
mod usage;

pub use drain_hooks::drain_hooks;
pub use usage::UsageMeter;

use super::{
    disks,
    system::{self, Tree, source},
    version, vm,
};
use crate::{container::runtime::name_and_version as container_runtime, vfio};
use meshd_proto::{
    AgentConfig, BootPart, Facts, Heartbeat, MAX_DEVICES, PciFacts, Resources, SystemFacts,
    Versions,
};
use meshd_types::Hardware;
use std::{path::Path, time::Instant};

/// Collects the facts of a hello; `vms` is the folder of VMs. A source that exceeds its deadline
/// has its value in `last`.
pub fn collect(
    tree: &Tree,
    vms: &Path,
    config: Option<&AgentConfig>,
    boot: Option<&BootPart>,
    last: &Facts,
) -> Facts {
    let deadline = Instant::now() + source::DEADLINE;
    let machine = source::read(tree, "machine", |tree| {
        let memory = system::machine::memory(tree);
        let memory = system::machine::memory_modules::with_modules(memory, tree);
        (system::machine::system(tree), system::machine::cpu(tree), memory)
    });
    let pci = source::read(tree, "pci", |tree| {
        let pci: Vec<PciFacts> = system::pci_functions(tree).take(MAX_DEVICES).collect();
        let gpus = system::gpus(tree, &pci);
        (pci, gpus)
    });
    let nics = source::read(tree, "nics", system::nics);
    let runtime = source::read(tree, "container runtime", container_runtime);
    let Resources { units, disks, slots, store, hosting } = match config {
        Some(config) => {
            let units = last.units.clone();
            let hosting = last.hosting.clone();
            resources(
                tree,
                vms,
                config,
                Resources { units, store: last.store, hosting, ..Resources::default() },
            )
        }
        None => Resources { disks: disks::survey(tree, &[]), ..Resources::default() },
    };
    let (system, cpu, memory) = value_or(machine.wait_until(deadline), || {
        (last.system.clone(), last.cpu.clone(), last.memory.clone())
    });
    let (pci, gpus) = value_or(pci.wait_until(deadline), || (last.pci.clone(), last.gpus.clone()));
    Facts {
        system,
        cpu,
        memory,
        pci,
        gpus,
        disks,
        nics: value_or(nics.wait_until(deadline), || last.nics.clone()),
        units,
        slots,
        store,
        hosting,
        drain_hooks: drain_hooks(tree),
        ssh_host_keys: ssh_host_keys(tree),
        task_input: true,
        container_runtime: value_or(runtime.wait_until(deadline), || {
            last.container_runtime.clone()
        }),
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

/// Collects the resources that the node offers under its profile. A source that exceeds its
/// deadline has its value in `last`.
pub(super) fn resources(
    tree: &Tree,
    vms: &Path,
    config: &AgentConfig,
    last: Resources,
) -> Resources {
    let deadline = Instant::now() + source::DEADLINE;
    let vfio = config.vfio.clone();
    let folder = vms.to_owned();
    let units = source::read(tree, "units", move |tree| {
        vfio::survey(tree, &vfio, &vfio::LinuxKernel(tree))
    });
    let store = source::read(tree, "store", move |_| vm::store(&folder));
    // `false`: do not run programs, which may block.
    let hosting = source::read(tree, "hosting", |tree| vm::hosting(tree, false));
    let disks = disks::survey(tree, &config.data_disks);
    let units = value_or(units.wait_until(deadline), || last.units);
    let slots = slots::suggest(tree, &units, &disks);
    let store = value_or(store.wait_until(deadline), || last.store);
    let hosting = hosting.wait_until(deadline).map(Box::new).ok().or(last.hosting);
    Resources { units, disks, slots, store, hosting }
}

fn value_or<T>(read: Result<T, source::ReadError>, fallback: impl FnOnce() -> T) -> T {
    read.unwrap_or_else(|error| {
        tracing::warn!(kind = std::any::type_name::<T>(), %error, "cannot read a source of facts");
        fallback()
    })
}

/// Reads the public host keys of the SSH server, without their comments.
fn ssh_host_keys(tree: &Tree) -> Vec<String> {
    let key = |kind: &str| {
        let text = tree.text(&format!("/etc/ssh/ssh_host_{kind}_key.pub"))?;
        let mut words = text.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    ["ed25519", "ecdsa", "rsa"].into_iter().filter_map(key).collect()
}

/// Reads the hardware identity from which the node ID is derived.
pub fn hardware(tree: &Tree) -> Hardware {
    let SystemFacts { uuid, manufacturer, product, serial, .. } = system::machine::system(tree);
    let macs = system::nics(tree).into_iter().filter_map(|nic| nic.mac).collect();
    Hardware { uuid, manufacturer, product, serial, macs }
}

/// Collects the content of a heartbeat.
pub fn heartbeat(tree: &Tree) -> Heartbeat {
    let storage = rustix::fs::statvfs(tree.path("/")).ok();
    Heartbeat {
        uptime_s: system::machine::uptime(tree).as_secs(),
        memory_available_kib: system::machine::memory(tree).available_kib,
        storage_free_bytes: storage.map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
        workloads: 0,
        usage: None,
    }
}

#[cfg(test)]
mod tests;
