//! From a specification to a process: looks whether the node can run it, makes its files, runs QEMU.

use super::{
    argv,
    clean::unclean,
    folder::Files,
    host::{self, Places},
    marks,
    plan::{Plan, PlannedVolume},
    process::{self, Process},
    promised::Promised,
    seed,
};
use crate::{
    agent::units,
    wire::vm::{MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmRefusal, VmSpec},
};
use rustix::process::Signal;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// How long a look at the node may take; a device that hangs must not hold up everything else.
const SURVEY_PATIENCE: Duration = Duration::from_secs(30);

/// How often, and with which pause, it is looked whether units and disks are free again.
const CLEAN_LOOKS: u32 = 10;
const CLEAN_PAUSE: Duration = Duration::from_millis(500);
/// How long a TPM may take to end.
const TPM_PATIENCE: Duration = Duration::from_secs(2);

/// A QEMU that was run; its guest waits.
#[derive(Debug)]
pub struct Launched {
    /// It.
    pub process: Process,
    /// `ip`, where cards are to be plugged into bridges.
    pub ip: Option<PathBuf>,
    /// IOMMU groups that nobody else takes as long as these are there.
    pub groups: Vec<File>,
}

/// Looks at the node; the reading blocks, so it has a thread of its own.
pub async fn survey(places: &Arc<Places>, spec: &VmSpec) -> host::Host {
    let (places, spec) = (places.clone(), spec.clone());
    let looking = tokio::task::spawn_blocking(move || host::survey(&places, &spec));
    let looked = timeout(SURVEY_PATIENCE, looking).await.map_err(|late| late.to_string());
    looked.and_then(|looked| looked.map_err(|error| error.to_string())).unwrap_or_else(|error| {
        // A node that cannot be looked at has nothing to give.
        tracing::error!(error, "the node could not be looked at");
        host::Host::default()
    })
}

/// Looks whether what a machine had can be given to another, some times: a device that is reset takes a while.
///
/// # Errors
/// What is not, and why.
pub async fn given_back(places: &Arc<Places>, spec: &VmSpec) -> Result<(), String> {
    if spec.units.is_empty() && spec.disks().next().is_none() {
        return Ok(());
    }
    let mut looks = 0;
    while let Some(why) = unclean(spec, &survey(places, spec).await) {
        looks += 1;
        if looks >= CLEAN_LOOKS {
            return Err(why);
        }
        sleep(CLEAN_PAUSE).await;
    }
    Ok(())
}

/// Keeps checks from taking these groups for a moment, in which QEMU would be told that they are busy.
async fn held(groups: &[u32]) -> Vec<File> {
    let groups = groups.to_vec();
    let holding = tokio::task::spawn_blocking(move || units::hold(&groups)).await;
    holding.map_err(io::Error::other).and_then(|held| held).unwrap_or_else(|error| {
        tracing::warn!(%error, "a check may take a unit while a machine is started on it");
        Vec::new()
    })
}

/// What was refused, in one text.
pub fn refused(refusals: &[VmRefusal]) -> VmFailure {
    let reasons: Vec<String> =
        refusals.iter().map(|refusal| format!("{}: {}", refusal.reason.as_str(), refusal.detail)).collect();
    let detail: String = reasons.join("; ").chars().take(MAX_FAILURE_TEXT / 4).collect();
    VmFailure { kind: VmFailureKind::Refused, detail, log: Vec::new() }
}

/// Runs QEMU.
///
/// # Errors
/// What the node lacks, or which file could not be made.
pub async fn launch(
    spec: &VmSpec,
    files: &Files,
    places: &Arc<Places>,
    promised: &Promised,
) -> Result<Launched, VmFailure> {
    let host = survey(places, spec).await;
    marks::adopts(files, spec, &host.disks).map_err(|refusal| refused(&[refusal]))?;
    let plan = promised.take(spec, &host).map_err(|refusals| refused(&refusals))?;
    prepare(spec, &plan, files).await.map_err(failed)?;
    marks::given(files, spec, &host.disks).map_err(|error| failed(error.to_string()))?;
    let args = argv::qemu(spec, &plan, files);
    let groups = held(&plan.groups).await;
    let process = process::spawn(&plan.qemu, &args, &files.log(), plan.cpus.as_deref());
    let process = match process {
        Ok(process) => process,
        Err(error) => {
            end_tpm(spec, files).await;
            return Err(failed(format!("{} cannot be run: {error}", plan.qemu.display())));
        }
    };
    tracing::info!(vm = %spec.name, pid = process.id(), accel = ?plan.accel, "QEMU runs");
    Ok(Launched { process, ip: plan.ip, groups })
}

/// Ends the TPM of a machine whose QEMU has gone. It ends with its connection, but one that QEMU never connected to would stay.
pub async fn end_tpm(spec: &VmSpec, files: &Files) {
    if spec.vtpm {
        end_any_tpm(files).await;
    }
}

/// The same of a machine of which nothing else is known.
pub async fn end_any_tpm(files: &Files) {
    let Some(tpm) = process::find_by("--ctrl", files.tpm_control().as_bytes()) else { return };
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

/// Makes what is not there yet: what the guest wrote to volumes, variables and TPM stays from one start to the next.
async fn prepare(spec: &VmSpec, plan: &Plan, files: &Files) -> Result<(), String> {
    let made = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path} cannot be made: {error}")
    };
    files.make().map_err(made(files.folder()))?;
    if let Some(uefi) = &plan.uefi {
        copy_once(&uefi.vars, &files.vars()).map_err(made(&files.vars()))?;
    }
    if let Some(image) = seed::image(spec) {
        write(&files.seed(), &image).map_err(made(&files.seed()))?;
    }
    for (index, volume) in plan.volumes.iter().enumerate() {
        if let (PlannedVolume::Layer { base, size }, Some(qemu_img)) = (volume, &plan.qemu_img) {
            layer(files, index, base, size.map(|size| size.bytes()), qemu_img).await?;
        }
    }
    if let Some(swtpm) = &plan.swtpm {
        DirBuilder::new().recursive(true).mode(0o700).create(files.tpm_state()).map_err(made(&files.tpm_state()))?;
        // One that served nobody would hold the state.
        end_any_tpm(files).await;
        process::run(swtpm, &argv::swtpm(files)).await?;
    }
    Ok(())
}

/// Made under another name first: half a layer is none.
async fn layer(files: &Files, index: usize, base: &Path, size: Option<u64>, qemu_img: &Path) -> Result<(), String> {
    let place = files.layer(index);
    if place.exists() {
        return Ok(());
    }
    let fresh = place.with_extension("new");
    process::run(qemu_img, &argv::layer(&fresh, base, size)).await?;
    fs::rename(&fresh, &place).map_err(|error| format!("{} cannot be made: {error}", place.display()))
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
