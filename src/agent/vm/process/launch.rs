//! Starts a VM: checks the resources of the node, makes the files, starts QEMU. Cleans up after it ended.

use super::qemu_process::{self, WatchedProcess};
use crate::{
    system::Tree,
    vfio,
    vm::{
        confine::{Confinement, cgroup, cpuset::DedicatedCpus, device},
        disks::{cloud_init_seed, ownership_marker, qcow2_overlay},
        helper_program,
        host::{config::HostConfig, resources},
        net::tap_ports,
        reservations::Reservations,
        spec::{
            argv,
            plan::{Accel, Plan, PlannedVolume},
        },
        vm_paths::VmPaths,
    },
};
use meshd_proto::vm::{MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmRefusal, VmSpec};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, lchown, symlink},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::timeout;

/// Memory limit beyond the counted memory: page cache of QEMU's files, kernel buffers.
const MARGIN: u64 = 512 << 20;
/// Maximum of QEMU's cache of translated code, with its tables.
const TRANSLATED: u64 = 1280 << 20;
/// Metadata of a layer.
const LAYER_TABLES: u64 = 64 << 20;
/// Timeout for the end of a TPM.
const TPM_PATIENCE: Duration = Duration::from_secs(2);

/// A started QEMU whose guest waits.
#[derive(Debug)]
pub struct Launched {
    /// The QEMU process.
    pub process: WatchedProcess,
    /// Path of `ip`, if NICs are plugged into bridges.
    pub ip: Option<PathBuf>,
    /// Locks of the IOMMU groups.
    pub groups: Vec<File>,
}

/// Locks IOMMU groups against checks: a probe would make them busy for QEMU.
async fn held(groups: &[u32]) -> Vec<File> {
    let groups = groups.to_vec();
    let holding = tokio::task::spawn_blocking(move || vfio::lock_groups(&groups)).await;
    holding.map_err(io::Error::other).and_then(|held| held).unwrap_or_else(|error| {
        tracing::warn!(%error, "a check may take a unit while a machine is started on it");
        Vec::new()
    })
}

/// Combines refusals into one failure.
pub fn refused(refusals: &[VmRefusal]) -> VmFailure {
    let reasons: Vec<String> =
        refusals.iter().map(|refusal| format!("{}: {}", refusal.reason.as_str(), refusal.detail)).collect();
    let detail: String = reasons.join("; ").chars().take(MAX_FAILURE_TEXT / 4).collect();
    VmFailure { kind: VmFailureKind::Refused, detail, log: Vec::new() }
}

/// Starts QEMU.
///
/// # Errors
/// The node lacks resources, or a file cannot be made.
pub async fn launch(
    spec: &VmSpec,
    files: &VmPaths,
    config: &Arc<HostConfig>,
    reservations: &Reservations,
) -> Result<Launched, VmFailure> {
    let host = resources::survey(config, spec).await;
    ownership_marker::adopts(files, spec, &host.disks).map_err(|refusal| refused(&[refusal]))?;
    let plan = reservations.take(spec, &host).map_err(|refusals| refused(&refusals))?;
    let launched = start(spec, &plan, &host, files, config, reservations).await;
    if launched.is_err() {
        end_all(spec, files, config).await;
    }
    let (process, groups) = launched?;
    tracing::info!(vm = %spec.name, pid = process.id(), accel = ?plan.accel, "QEMU runs");
    Ok(Launched { process, ip: plan.ip, groups })
}

/// Makes files and devices of a VM and starts QEMU. The caller removes them after an error.
async fn start(
    spec: &VmSpec,
    plan: &Plan,
    host: &resources::HostResources,
    files: &VmPaths,
    config: &Arc<HostConfig>,
    reservations: &Reservations,
) -> Result<(qemu_process::WatchedProcess, Vec<File>), VmFailure> {
    let confined = confine(spec, plan, files, config, host.layers_in_memory).map_err(failed)?;
    prepare(spec, plan, files, &confined).await.map_err(failed)?;
    tap_ports::make(spec, plan.ip.as_deref(), files, &confined, config, reservations).await.map_err(failed)?;
    ownership_marker::given(files, spec, &host.disks).map_err(|error| failed(error.to_string()))?;
    let argv::Invocation { args, pass } = argv::qemu(spec, plan, files);
    let (program, args) = confined.command(!plan.functions.is_empty(), pass, &plan.qemu, &args);
    let groups = held(&plan.groups).await;
    // With a cpuset the agent cannot pin itself to these CPUs, not even to start a process.
    let cpus = plan.cpus.as_deref().filter(|_| !confined.has_cpus());
    let process = qemu_process::spawn(&program, &args, &files.log(), cpus)
        .map_err(|error| failed(format!("{} cannot be run: {error}", plan.qemu.display())))?;
    Ok((process, groups))
}

/// Gives a VM its user, control group and devices.
fn confine(
    spec: &VmSpec,
    plan: &Plan,
    files: &VmPaths,
    config: &HostConfig,
    layers_in_memory: bool,
) -> Result<Confinement, String> {
    files.make().map_err(|error| format!("{} cannot be made: {error}", files.folder().display()))?;
    let confined = Confinement::of(spec, files, config, &limits(spec, plan, layers_in_memory))?;
    let (tree, (user, _)) = (Tree::new(&config.root), confined.owner());
    if plan.accel == Accel::Kvm {
        device::share(&tree, "/dev/kvm")?;
    }
    device::give_groups(&tree, &plan.groups, user)?;
    Ok(confined)
}

/// Returns the limits of a VM's control group.
fn limits(spec: &VmSpec, plan: &Plan, layers_in_memory: bool) -> cgroup::CgroupLimits {
    let layers = plan.volumes.iter().filter_map(|volume| match volume {
        PlannedVolume::Layer { base, size } if layers_in_memory => {
            Some(qcow2_overlay::virtual_size(base, *size).unwrap_or(0).saturating_add(LAYER_TABLES))
        }
        _ => None,
    });
    let translated = if plan.accel == Accel::Tcg { TRANSLATED } else { 0 };
    let memory = [spec.node_memory(), MARGIN, translated].into_iter().chain(layers).fold(0, u64::saturating_add);
    let dedicated = (!spec.shares_processors())
        .then(|| DedicatedCpus { count: usize::try_from(spec.vcpus).unwrap_or(usize::MAX), among: plan.cpus.clone() });
    cgroup::CgroupLimits { memory, vcpus: spec.vcpus, dedicated }
}

/// Cleans up after QEMU ended: helpers, control group, device permissions, TAP devices. A TPM that QEMU never connected to does not end by
/// itself.
pub async fn end_all(spec: &VmSpec, files: &VmPaths, config: &HostConfig) {
    if spec.vtpm {
        end_any_tpm(files).await;
    }
    if let Ok(group) = cgroup::VmCgroup::of(files, spec) {
        group.end();
    }
    if let Some(user) = files.user() {
        device::take_groups(&Tree::new(&config.root), user);
    }
    tap_ports::remove(spec, config).await;
}

/// Ends the TPM of a VM.
pub async fn end_any_tpm(files: &VmPaths) {
    let Some(tpm) = qemu_process::find_by("--ctrl", files.tpm_control().as_bytes(), files.user()) else { return };
    for signal in [Signal::TERM, Signal::KILL] {
        tpm.signal(signal);
        if timeout(TPM_PATIENCE, tpm.ended()).await.is_ok() {
            return;
        }
    }
    tracing::error!(pid = tpm.id(), "a TPM was killed and does not end");
}

fn failed(detail: String) -> VmFailure {
    let detail = detail.chars().take(MAX_FAILURE_TEXT / 4).collect();
    VmFailure { kind: VmFailureKind::Prepare, detail, log: Vec::new() }
}

/// Makes missing files. Volumes, UEFI variables and TPM state survive a restart.
async fn prepare(spec: &VmSpec, plan: &Plan, files: &VmPaths, confined: &Confinement) -> Result<(), String> {
    let made = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path} cannot be made: {error}")
    };
    let (user, group) = confined.owner();
    let owned = |path: PathBuf, mode: u32| device::own(&path, user, group, mode).map_err(made(&path));
    for file in [files.pid(), files.console()] {
        OpenOptions::new().create(true).append(true).mode(0o600).open(&file).map_err(made(&file))?;
        owned(file, 0o600)?;
    }
    serial(files).map_err(made(&files.serial_in()))?;
    owned(files.serial_in(), 0o600)?;
    if let Some(uefi) = &plan.uefi {
        copy_once(&uefi.vars, &files.vars()).map_err(made(&files.vars()))?;
        owned(files.vars(), 0o600)?;
    }
    if let Some(image) = cloud_init_seed::image(spec) {
        write(&files.seed(), &image).map_err(made(&files.seed()))?;
        owned(files.seed(), 0o400)?;
    }
    for (index, volume) in plan.volumes.iter().enumerate() {
        if let (PlannedVolume::Layer { base, size }, Some(qemu_img)) = (volume, &plan.qemu_img) {
            qcow2_overlay::create(files, index, (base, *size), qemu_img, confined).await?;
        }
    }
    if let Some(swtpm) = &plan.swtpm {
        // A TPM that serves nobody would lock the state.
        end_any_tpm(files).await;
        let state = files.tpm_state();
        DirBuilder::new().recursive(true).mode(0o700).create(&state).map_err(made(&state))?;
        for entry in fs::read_dir(&state).map_err(made(&state))?.flatten() {
            let path = entry.path();
            // Do not follow links: the folder belongs to the VM's user.
            lchown(&path, Some(user), Some(group)).map_err(made(&path))?;
        }
        owned(state, 0o700)?;
        let (program, args) = confined.command(false, Vec::new(), swtpm, &argv::swtpm(files));
        helper_program::run(&program, &args).await?;
    }
    Ok(())
}

/// Makes both ends of the serial port anew: input for an earlier QEMU is dropped.
fn serial(files: &VmPaths) -> io::Result<()> {
    for stale in [files.serial_in(), files.serial_out()] {
        match fs::remove_file(stale) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    mknodat(CWD, files.serial_in(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    symlink("/dev/null", files.serial_out())
}

fn copy_once(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let fresh = to.with_extension("new");
    write(&fresh, &fs::read(from)?)?;
    fs::rename(fresh, to)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}
