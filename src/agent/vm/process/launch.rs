//! Starts a VM: checks the resources of the node, makes the files, starts QEMU. Cleans up after
//! QEMU ended.

use super::{
    qemu_process::{self, WatchedProcess},
    swtpm,
};
use crate::{
    system::Tree,
    vfio,
    vm::{
        confine::{Confinement, cgroup, cpuset::DedicatedCpus, device},
        disks::{cloud_init_seed, ownership_marker, qcow2_layer},
        failure::{combine_refusals, failure},
        host::{config::HostConfig, resources},
        net::{guest_login::relay_key, tap_ports},
        reservations::Reservations,
        spec::{
            argv,
            plan::{Accel, Plan, PlannedVolume},
        },
        vm_paths::{self, VmPaths},
    },
};
use meshd_proto::vm::{VmFailure, VmFailureKind, VmSpec};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Page cache of QEMU's files and kernel buffers, added to the memory limit, in bytes.
const PAGE_CACHE: u64 = 512 << 20;
/// Maximum size of QEMU's cache of translated code with its tables, in bytes.
const TCG_CACHE: u64 = 1280 << 20;
/// Maximum size of a layer's metadata, in bytes.
const LAYER_TABLES: u64 = 64 << 20;

/// A started QEMU. Its guest does not run yet.
#[derive(Debug)]
pub struct Launched {
    pub process: WatchedProcess,
    pub group_locks: Vec<File>,
}

/// Locks IOMMU groups against readiness checks: a probe would make them busy for QEMU.
async fn lock_groups(groups: &[u32]) -> Vec<File> {
    let groups = groups.to_vec();
    let locked = tokio::task::spawn_blocking(move || vfio::lock_groups(&groups)).await;
    locked.map_err(io::Error::other).and_then(|locks| locks).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot lock IOMMU groups: a readiness check may open them while a VM starts");
        Vec::new()
    })
}

/// Surveys the node, reserves the resources of a VM and starts QEMU: once for each start. The
/// caller cancels the reservation of a VM that does not run.
pub async fn launch(
    spec: &VmSpec,
    files: &VmPaths,
    config: &Arc<HostConfig>,
    reservations: &Reservations,
) -> Result<Launched, VmFailure> {
    let host = resources::survey(config, spec).await;
    ownership_marker::check_adoption(files, spec, &host.disks)
        .map_err(|refusal| combine_refusals(&[refusal]))?;
    let plan = reservations.reserve(spec, &host).map_err(|refusals| combine_refusals(&refusals))?;
    reservations.limit_store(config).await;
    let launched = start_qemu(spec, &plan, &host, files, config, reservations).await;
    if launched.is_err() {
        clean_up(spec, files, config).await;
    }
    let (process, group_locks) =
        launched.map_err(|detail| failure(VmFailureKind::Prepare, detail))?;
    tracing::info!(vm = %spec.name, pid = process.id(), accel = ?plan.accel, "QEMU runs");
    Ok(Launched { process, group_locks })
}

/// Makes files and devices of a VM and starts QEMU. The caller removes them after an error.
async fn start_qemu(
    spec: &VmSpec,
    plan: &Plan,
    host: &resources::HostResources,
    files: &VmPaths,
    config: &Arc<HostConfig>,
    reservations: &Reservations,
) -> Result<(WatchedProcess, Vec<File>), String> {
    let confined = confine(spec, plan, files, config, host.layers_in_memory)?;
    // Before the first program of the VM's user, such as `qemu-img`.
    tap_ports::update_filters(config, reservations).await?;
    make_files(spec, plan, files, &confined).await?;
    tap_ports::make(spec, &confined, config, reservations).await?;
    ownership_marker::record_assigned(files, spec, &host.disks)
        .map_err(|error| error.to_string())?;
    let argv::CommandLine { args, pass } = argv::qemu(spec, plan, files);
    let (program, args) = confined.command(!plan.functions.is_empty(), pass, &plan.qemu, &args);
    let group_locks = lock_groups(&plan.groups).await;
    // With a cpuset the agent cannot pin itself to these CPUs, not even to start a process.
    let cpus = plan.cpus.as_deref().filter(|_| !confined.has_cpus());
    let process = qemu_process::spawn(&program, &args, &files.log(), cpus)
        .map_err(|error| format!("cannot run {}: {error}", plan.qemu.display()))?;
    Ok((process, group_locks))
}

fn confine(
    spec: &VmSpec,
    plan: &Plan,
    files: &VmPaths,
    config: &HostConfig,
    layers_in_memory: bool,
) -> Result<Confinement, String> {
    files.make().map_err(|error| format!("cannot make {}: {error}", files.folder().display()))?;
    let confined = Confinement::for_vm(spec, files, config, &limits(spec, plan, layers_in_memory))?;
    let (tree, (user, _)) = (Tree::new(&config.root), confined.owner());
    if plan.accel == Accel::Kvm {
        device::share(&tree, "/dev/kvm")?;
    }
    device::assign_groups(&tree, &plan.groups, user)?;
    Ok(confined)
}

fn limits(spec: &VmSpec, plan: &Plan, layers_in_memory: bool) -> cgroup::CgroupLimits {
    let layers = plan.volumes.iter().filter_map(|volume| match volume {
        PlannedVolume::Layer { base, size } if layers_in_memory => {
            Some(qcow2_layer::virtual_size(base, *size).unwrap_or(0).saturating_add(LAYER_TABLES))
        }
        _ => None,
    });
    let tcg_cache = if plan.accel == Accel::Tcg { TCG_CACHE } else { 0 };
    let memory = [spec.node_memory(), PAGE_CACHE, tcg_cache]
        .into_iter()
        .chain(layers)
        .fold(0, u64::saturating_add);
    let dedicated = (!spec.shares_processors()).then(|| DedicatedCpus {
        count: usize::try_from(spec.vcpus).unwrap_or(usize::MAX),
        candidates: plan.cpus.clone(),
    });
    cgroup::CgroupLimits { memory, vcpus: spec.vcpus, dedicated }
}

/// Cleans up after QEMU ended: swtpm, control group, device permissions, TAP devices. Without a
/// connection from QEMU, swtpm does not end by itself.
pub async fn clean_up(spec: &VmSpec, files: &VmPaths, config: &HostConfig) {
    if spec.vtpm {
        swtpm::stop(files).await;
    }
    if let Ok(group) = cgroup::VmCgroup::for_vm(files, spec) {
        group.kill_and_remove();
    }
    if let Some(user) = files.user() {
        device::reclaim_groups(&Tree::new(&config.root), user);
    }
    tap_ports::remove(spec);
}

/// Makes missing files. Volumes, UEFI variables and TPM state survive a restart.
async fn make_files(
    spec: &VmSpec,
    plan: &Plan,
    files: &VmPaths,
    confined: &Confinement,
) -> Result<(), String> {
    let cannot_make = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("cannot make {path}: {error}")
    };
    let (user, group) = confined.owner();
    let set_owner = |path: PathBuf, mode: u32| {
        device::set_owner(&path, user, group, mode).map_err(cannot_make(&path))
    };
    for file in [files.pid(), files.console()] {
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&file)
            .map_err(cannot_make(&file))?;
        set_owner(file, 0o600)?;
    }
    make_serial_port(files).map_err(cannot_make(&files.serial_in()))?;
    set_owner(files.serial_in(), 0o600)?;
    if let Some(uefi) = &plan.uefi {
        copy_once(&uefi.vars, &files.vars()).map_err(cannot_make(&files.vars()))?;
        set_owner(files.vars(), 0o600)?;
    }
    // A VM starts without: a login then says so.
    let key = spec.cloud_init.as_ref().and_then(|_| {
        let made = relay_key::ensure(files);
        made.inspect_err(|error| tracing::warn!(vm = %spec.name, error, "no key for VM shells"))
            .ok()
    });
    if let Some(image) = cloud_init_seed::image(spec, key.as_deref()) {
        write(&files.seed(), &image).map_err(cannot_make(&files.seed()))?;
        set_owner(files.seed(), 0o400)?;
    }
    for (index, volume) in plan.volumes.iter().enumerate() {
        if let (PlannedVolume::Layer { base, size }, Some(qemu_img)) = (volume, &plan.qemu_img) {
            qcow2_layer::create(files, index, base, *size, qemu_img, confined).await?;
        }
    }
    if let Some(swtpm_program) = &plan.swtpm {
        swtpm::start(files, swtpm_program, confined).await?;
    }
    Ok(())
}

/// Replaces both ends of the serial port, which drops the input for an earlier QEMU.
fn make_serial_port(files: &VmPaths) -> io::Result<()> {
    for stale in [files.serial_in(), files.serial_out()] {
        vm_paths::remove_file(&stale)?;
    }
    mknodat(CWD, files.serial_in(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    symlink("/dev/null", files.serial_out())
}

fn copy_once(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let new = to.with_extension("new");
    write(&new, &fs::read(from)?)?;
    fs::rename(new, to)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(bytes)
}
