//! Writes an image to a disk of the node and compares it. The disk is checked immediately before,
//! and open exclusively during the write.
//!
//! ```text
//! checks ─▶ survey ─▶ open exclusively ─▶ marker: begun ─▶ qemu-img convert ─▶ sync ─▶ qemu-img compare ─▶ marker: done
//! ```

use super::ownership_marker;
use crate::{
    disks::{self, exclusive_disk::ExclusiveDisk, wipe::blocking_check},
    files,
    system::Tree,
    vm::{
        failure::refusal,
        host::{config::HostConfig, installed::Programs},
        spec::argv::{self, ImageFormat},
        vm_paths::VmPaths,
    },
};
use meshd_proto::{
    DiskFacts, DiskUse,
    vm::{RawDisk, VmRefusal, VmRefusalReason as Reason, Volume, VolumeSource, qcow2},
};
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::sync::CancellationToken;

/// An image is a multiple of this size.
const SECTOR: u64 = 512;
/// Maximum bytes of error output that are read.
const MAX_STDERR: u64 = 4096;

/// Progress in bytes of all images.
#[derive(Debug, Default)]
pub struct WriteProgress {
    /// Bytes written and compared.
    pub bytes: AtomicU64,
    /// Bytes to write and to compare.
    pub total: AtomicU64,
}

struct SourceImage {
    path: PathBuf,
    format: ImageFormat,
    /// Bytes that it needs on a disk.
    bytes: u64,
}

/// The disk writes of one VM.
pub struct DiskWrite {
    pub files: VmPaths,
    pub config: Arc<HostConfig>,
    /// Volumes to write; true if an earlier write began.
    pub volumes: Vec<(Volume, bool)>,
    pub progress: Arc<WriteProgress>,
}

/// Runs blocking work in a thread. Completes when the work has ended, also after `cancel`. A
/// dropped future cancels the work, which may then run on.
pub async fn blocking<T: Send + 'static>(
    cancel: &CancellationToken,
    work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
) -> Result<T, String> {
    let cancelled = cancel.child_token();
    let _guard = cancelled.clone().drop_guard();
    let result = tokio::task::spawn_blocking(move || work(&cancelled)).await;
    result.map_err(|error| format!("interrupted: {error}"))
}

impl DiskWrite {
    /// Writes all images. After an error the VM must not start. Completes when no thread and no
    /// program of the write runs, also after `cancel`.
    pub async fn run(self, cancel: &CancellationToken) -> Result<(), VmRefusal> {
        for (volume, was_begun) in &self.volumes {
            let written = self.write(volume.clone(), *was_begun, cancel).await;
            written.map_err(|refusal| {
                let detail = format!("volume {}: {}", volume.name, refusal.detail);
                VmRefusal { detail, ..refusal }
            })?;
        }
        Ok(())
    }

    async fn write(
        &self,
        volume: Volume,
        was_begun: bool,
        cancel: &CancellationToken,
    ) -> Result<(), VmRefusal> {
        let failed = |reason: String| refusal(Reason::DiskWriteFailed, reason);
        let config = self.config.clone();
        let files = self.files.clone();
        let name = volume.name.clone();
        let begin = blocking(cancel, move |_| {
            begin(&config, &files, &volume, was_begun).map(|begun| (begun, volume))
        });
        let ((disk, image), volume) = begin.await.map_err(failed)??;
        let disk = Arc::new(disk);
        tracing::info!(volume = %name, bytes = image.bytes, "writing an image to a disk");
        let before = self.progress.bytes.load(Ordering::Relaxed);
        self.progress.total.fetch_add(image.bytes * 2, Ordering::Relaxed);
        let qemu_img = Programs::find(&Tree::new(&self.config.root)).qemu_img;
        let qemu_img =
            qemu_img.ok_or_else(|| refusal(Reason::QemuMissing, "qemu-img is not installed"))?;
        let target = disk.clone();
        // Discard the whole disk first if that is cheap.
        let discard = blocking(cancel, move |cancelled| target.discard(cancelled));
        let is_zero = discard.await.map_err(failed)?;
        let set_progress = |completed_passes: u64, permyriad: u64| {
            let bytes = before + image.bytes * completed_passes + image.bytes / 10_000 * permyriad;
            self.progress.bytes.store(bytes, Ordering::Relaxed);
        };
        let args = argv::convert(&image.path, image.format, &disk.path(), is_zero);
        let converted = run(&qemu_img, &args, cancel, |permyriad| set_progress(0, permyriad));
        converted.await.map_err(failed)?;
        let target = disk.clone();
        let synced = blocking(cancel, move |_| target.sync()).await.map_err(failed)?;
        synced.map_err(|error| failed(format!("cannot flush the disk: {error}")))?;
        let args = argv::compare(&image.path, image.format, &disk.path(), image.bytes);
        let compared = run(&qemu_img, &args, cancel, |permyriad| set_progress(1, permyriad));
        compared.await.map_err(|error| {
            failed(format!("the disk differs from the image after the write: {error}"))
        })?;
        set_progress(2, 0);
        ownership_marker::set_state(&self.files, &volume, DiskUse::Done)
            .map_err(|error| failed(error.to_string()))?;
        tracing::info!(volume = %name, "the image is written");
        Ok(())
    }
}

/// Makes all checks, opens the disk and records the start of the write.
fn begin(
    config: &HostConfig,
    files: &VmPaths,
    volume: &Volume,
    was_begun: bool,
) -> Result<(ExclusiveDisk, SourceImage), VmRefusal> {
    if let Some(reason) = blocking_check(&config.checks.run()) {
        return Err(refusal(Reason::DoctorFails, format!("disks are not written: {reason}")));
    }
    let image = read_image(config, volume)?;
    let tree = Tree::new(&config.root);
    let all = disks::survey(&tree, &config.data_disks);
    let facts = writable_disk(&all, volume, image.bytes, was_begun)?;
    let disk =
        ExclusiveDisk::open(&tree, facts).map_err(|error| refusal(Reason::DiskInUse, error))?;
    check_size(disk.bytes(), image.bytes)?;
    // From here on the disk belongs to the VM until it is wiped.
    let recorded = ownership_marker::record_begun(files, volume, facts.signatures.clone());
    recorded.map_err(|error| {
        refusal(Reason::DiskWriteFailed, format!("cannot record the write: {error}"))
    })?;
    Ok((disk, image))
}

/// Returns the disk if it may be overwritten. Pure.
fn writable_disk<'a>(
    disks: &'a [DiskFacts],
    volume: &Volume,
    bytes: u64,
    was_begun: bool,
) -> Result<&'a DiskFacts, VmRefusal> {
    let VolumeSource::Raw { disk, overwrite, .. } = &volume.source else {
        return Err(refusal(Reason::SpecInvalid, "the volume is not a disk"));
    };
    let identity = disk.identity().map_or("", |disk| disk.as_str());
    let Some(found) = DiskFacts::by_identity(disks, identity) else {
        return Err(refusal(
            Reason::DiskMissing,
            format!("not exactly one disk has the identity `{identity}`"),
        ));
    };
    if let Some(reason) = &found.blocked {
        return Err(refusal(Reason::DiskInUse, format!("`{identity}`: {reason}")));
    }
    check_size(found.bytes, bytes)?;
    // Content of an interrupted write belongs to the VM.
    if !found.signatures.is_empty() && !overwrite && !was_begun {
        let content = found.signatures.join(", ");
        let disk =
            if matches!(disk, RawDisk::Slot(_)) { "the disk of the slot" } else { "the disk" };
        let detail =
            format!("`{identity}` is not empty: {content}; set overwrite = true to erase {disk}");
        return Err(refusal(Reason::DiskNotEmpty, detail));
    }
    Ok(found)
}

fn check_size(disk: u64, image: u64) -> Result<(), VmRefusal> {
    if image <= disk {
        return Ok(());
    }
    let detail =
        format!("the image needs {} MiB, the disk has {} MiB", image.div_ceil(1 << 20), disk >> 20);
    Err(refusal(Reason::DiskTooSmall, detail))
}

/// Reads format and size of an image. Images with backing files are rejected.
fn read_image(config: &HostConfig, volume: &Volume) -> Result<SourceImage, VmRefusal> {
    let digest = volume
        .source
        .digest()
        .ok_or_else(|| refusal(Reason::VolumeMissing, "the volume has no image"))?;
    let path = config.volumes_dir.join(digest.to_string());
    let missing = |error| refusal(Reason::VolumeMissing, format!("{}: {error}", path.display()));
    let length = path.metadata().map_err(missing)?.len();
    let header = files::read_beginning(&path, qcow2::HEADER).map_err(missing)?;
    let unfit = |reason: &str| refusal(Reason::VolumeUnfit, reason);
    let (format, bytes) = if header.starts_with(&qcow2::MAGIC) {
        (ImageFormat::Qcow2, qcow2::virtual_size(&header).map_err(unfit)?)
    } else {
        (ImageFormat::Raw, length)
    };
    if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
        return Err(unfit("the image size is not a multiple of 512 bytes"));
    }
    Ok(SourceImage { path, format, bytes })
}

/// Runs `qemu-img`, and kills it after `cancel`. `set_progress` receives the progress in
/// ten-thousandths.
async fn run(
    qemu_img: &Path,
    args: &[String],
    cancel: &CancellationToken,
    set_progress: impl Fn(u64),
) -> Result<(), String> {
    let mut command = tokio::process::Command::new(qemu_img);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child =
        command.spawn().map_err(|error| format!("cannot run {}: {error}", qemu_img.display()))?;
    let out = child.stdout.take();
    let err = child.stderr.take();
    let ended =
        async { tokio::join!(read_progress(out, set_progress), read_stderr(err), child.wait()) };
    let (last_output, stderr, status) = tokio::select! {
        ended = ended => ended,
        () = cancel.cancelled() => {
            let killed = child.kill().await;
            return Err(killed.map_or_else(|error| error.to_string(), |()| "cancelled".to_owned()));
        }
    };
    let status = status.map_err(|error| format!("{}: {error}", qemu_img.display()))?;
    if status.success() {
        return Ok(());
    }
    let verb = args.first().map_or("", String::as_str);
    Err(format!("qemu-img {verb} {status}: {}", format!("{last_output} {stderr}").trim()))
}

/// Reads progress; returns the last other output.
async fn read_progress(out: Option<impl AsyncRead + Unpin>, set_progress: impl Fn(u64)) -> String {
    let (Some(mut out), mut piece, mut last) = (out, [0; 512], String::new()) else {
        return String::new();
    };
    while let Ok(length) = out.read(&mut piece).await
        && length > 0
    {
        let text = String::from_utf8_lossy(&piece[..length]).into_owned();
        match parse_progress(&text) {
            Some(permyriad) => set_progress(permyriad),
            None => last = text.trim().chars().take(200).collect(),
        }
    }
    last
}

async fn read_stderr(err: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut err) = err {
        // Drain the rest, so that the program does not block.
        let _ = (&mut err).take(MAX_STDERR).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut err, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).trim().chars().take(400).collect()
}

/// Returns the last `(12.34/100%)` of a text in ten-thousandths. Pure.
fn parse_progress(text: &str) -> Option<u64> {
    let (before, _) = text.rsplit_once("/100%)")?;
    let (whole, part) = before.rsplit_once('(')?.1.split_once('.')?;
    let (whole, part): (u64, u64) = (whole.parse().ok()?, part.parse().ok()?);
    (whole <= 100 && part < 100).then_some(whole * 100 + part)
}

#[cfg(test)]
#[path = "tests/write.rs"]
mod tests;
