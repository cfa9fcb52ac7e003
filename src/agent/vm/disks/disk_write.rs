//! Writes an image onto a disk of the node and compares it. The disk is checked immediately before, and open exclusively during the write.
//!
//! ```text
//! checks ─▶ survey ─▶ open exclusively ─▶ marker: begun ─▶ qemu-img convert ─▶ sync ─▶ qemu-img compare ─▶ marker: done
//! ```

use super::{exclusive_disk::ExclusiveDisk, ownership_marker};
use crate::{
    disks,
    system::Tree,
    vm::{
        host::{config::HostConfig, installed::Programs},
        spec::argv::{self, ImageFormat},
        vm_paths::VmPaths,
    },
};
use meshd_proto::{
    Check, CheckStatus, DiskFacts,
    vm::{DiskUse, RawDisk, VmRefusal, VmRefusalReason as Reason, Volume, VolumeSource, qcow2},
};
use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Checks that must have run and not failed before a disk is written.
const STORAGE: [&str; 2] = ["store", "images"];
/// An image is a multiple of this size.
const SECTOR: u64 = 512;
/// Maximum bytes of error output that are kept.
const MAX_WORDS: u64 = 4096;

/// Progress in bytes of all images.
#[derive(Debug, Default)]
pub struct WriteProgress {
    /// Bytes written and compared.
    pub bytes: AtomicU64,
    /// Bytes of all images.
    pub of: AtomicU64,
}

/// An image on the node.
struct SourceImage {
    path: PathBuf,
    format: ImageFormat,
    /// Bytes that it needs on a disk.
    bytes: u64,
}

/// The disk writes of one VM. Dropping it stops them.
pub struct DiskWrite {
    /// Paths of the VM.
    pub files: VmPaths,
    /// Configuration of the node.
    pub config: Arc<HostConfig>,
    /// Volumes to write; true if an earlier write began.
    pub volumes: Vec<(Volume, bool)>,
    pub progress: Arc<WriteProgress>,
}

fn refusal(reason: Reason, detail: impl Into<String>) -> VmRefusal {
    VmRefusal { reason, detail: detail.into() }
}

/// Cancels a blocking thread when dropped.
pub struct CancelOnDrop(pub Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work in a thread and cancels it when the future is dropped.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T, String> {
    let guard = CancelOnDrop(Arc::default());
    let is_over = guard.0.clone();
    let done = tokio::task::spawn_blocking(move || work(&is_over)).await;
    done.map_err(|error| format!("it was interrupted: {error}"))
}

impl DiskWrite {
    /// Writes all images.
    ///
    /// # Errors
    /// The first image that was not written, and why. The VM must not start.
    pub async fn run(self) -> Result<(), VmRefusal> {
        for (volume, is_begun) in &self.volumes {
            let written = self.write(volume.clone(), *is_begun).await;
            written.map_err(|refusal| {
                let detail = format!("volume {}: {}", volume.name, refusal.detail);
                VmRefusal { detail, ..refusal }
            })?;
        }
        Ok(())
    }

    async fn write(&self, volume: Volume, is_begun: bool) -> Result<(), VmRefusal> {
        let failed = |why: String| refusal(Reason::DiskWriteFailed, why);
        let (config, files) = (self.config.clone(), self.files.clone());
        let name = volume.name.clone();
        let begin = blocking(move |_| begin(&config, &files, &volume, is_begun).map(|held| (held, volume)));
        let ((block, image), volume) = begin.await.map_err(failed)??;
        let block = Arc::new(block);
        tracing::info!(volume = %name, bytes = image.bytes, "an image is written onto a disk");
        let before = self.progress.bytes.load(Ordering::Relaxed);
        self.progress.of.fetch_add(image.bytes * 2, Ordering::Relaxed);
        let tool = Programs::find(&Tree::new(&self.config.root)).qemu_img;
        let tool = tool.ok_or_else(|| refusal(Reason::QemuMissing, "qemu-img is not installed"))?;
        let held = block.clone();
        // Discard the whole disk first if that is cheap.
        let is_zero = blocking(move |is_over| held.zero_at_once(is_over)).await.map_err(failed)?;
        let told = |done: u64, permyriad: u64| {
            let bytes = before + image.bytes * done + image.bytes / 10_000 * permyriad;
            self.progress.bytes.store(bytes, Ordering::Relaxed);
        };
        let args = argv::convert(&image.path, image.format, &block.path(), is_zero);
        run(&tool, &args, |share| told(0, share)).await.map_err(failed)?;
        let held = block.clone();
        let synced = blocking(move |_| held.sync()).await.map_err(failed)?;
        synced.map_err(|error| failed(format!("it is not all on the disk: {error}")))?;
        let args = argv::compare(&image.path, image.format, &block.path(), image.bytes);
        let same = run(&tool, &args, |share| told(1, share)).await;
        same.map_err(|why| failed(format!("what the disk reads back is not the image: {why}")))?;
        told(2, 0);
        ownership_marker::set(&self.files, &volume, DiskUse::Done).map_err(|error| failed(error.to_string()))?;
        tracing::info!(volume = %name, "the image is on the disk");
        Ok(())
    }
}

/// All checks before the first byte is written.
fn begin(
    config: &HostConfig,
    files: &VmPaths,
    volume: &Volume,
    is_begun: bool,
) -> Result<(ExclusiveDisk, SourceImage), VmRefusal> {
    if let Some(why) = doctor_blocks(&config.checks.run()) {
        return Err(refusal(Reason::DoctorFails, format!("no disk is written while {why}")));
    }
    let image = image(config, volume)?;
    let tree = Tree::new(&config.root);
    let all = disks::survey(&tree, &config.data_disks);
    let disk = judge(&all, volume, image.bytes, is_begun)?;
    let block = ExclusiveDisk::hold(&tree, disk).map_err(|why| refusal(Reason::DiskInUse, why))?;
    fits(block.bytes(), image.bytes)?;
    // From here on the disk belongs to the VM until it is wiped.
    let marked = ownership_marker::begun(files, volume, disk.signatures.clone());
    marked.map_err(|error| refusal(Reason::DiskWriteFailed, format!("the node cannot write that down: {error}")))?;
    Ok((block, image))
}

/// Returns why the checks forbid disk writes (DR-16). Pure.
pub fn doctor_blocks(checks: &[Check]) -> Option<String> {
    if let Some(check) = checks.iter().find(|check| check.status == CheckStatus::Fail) {
        return Some(format!("check {} fails: {}", check.name, check.detail));
    }
    let ran = |name: &str| {
        let is_sound = |check: &Check| matches!(check.status, CheckStatus::Pass | CheckStatus::Warn);
        checks.iter().any(|check| check.name == name && is_sound(check))
    };
    STORAGE.iter().find(|name| !ran(name)).map(|name| format!("check {name} did not run"))
}

/// Returns the disk if it may be overwritten. Pure.
fn judge<'a>(disks: &'a [DiskFacts], volume: &Volume, bytes: u64, is_begun: bool) -> Result<&'a DiskFacts, VmRefusal> {
    let VolumeSource::Raw { disk, overwrite, .. } = &volume.source else {
        return Err(refusal(Reason::SpecInvalid, "it is no disk"));
    };
    let identity = disk.identity().map_or("", |disk| disk.as_str());
    let Some(found) = DiskFacts::called(disks, identity) else {
        return Err(refusal(Reason::DiskMissing, format!("no disk is called `{identity}`, or several are")));
    };
    if let Some(why) = &found.blocked {
        return Err(refusal(Reason::DiskInUse, format!("`{identity}`: {why}")));
    }
    fits(found.bytes, bytes)?;
    // Content of an interrupted write belongs to the VM.
    if !found.signatures.is_empty() && !overwrite && !is_begun {
        let holds = found.signatures.join(", ");
        let of = if matches!(disk, RawDisk::Slot(_)) { "the disk of its slot" } else { "it" };
        let detail = format!("`{identity}` holds: {holds}; write overwrite = true if {of} may lose that");
        return Err(refusal(Reason::DiskNotEmpty, detail));
    }
    Ok(found)
}

fn fits(room: u64, bytes: u64) -> Result<(), VmRefusal> {
    if bytes <= room {
        return Ok(());
    }
    let detail = format!("the image takes {} MiB, and the disk has {} MiB", bytes.div_ceil(1 << 20), room >> 20);
    Err(refusal(Reason::DiskTooSmall, detail))
}

/// Reads format and size of an image. Images with backing files are rejected.
fn image(config: &HostConfig, volume: &Volume) -> Result<SourceImage, VmRefusal> {
    let digest = volume.source.digest().ok_or_else(|| refusal(Reason::VolumeMissing, "it has no image"))?;
    let path = config.images.join(digest.to_string());
    let missing = |error| refusal(Reason::VolumeMissing, format!("{}: {error}", path.display()));
    let mut file = File::open(&path).map_err(missing)?;
    let length = file.metadata().map_err(missing)?.len();
    let mut header = Vec::new();
    (&mut file).take(qcow2::HEADER).read_to_end(&mut header).map_err(missing)?;
    let unfit = |why: &str| refusal(Reason::VolumeUnfit, why);
    let (format, bytes) = if header.starts_with(&qcow2::MAGIC) {
        (ImageFormat::Qcow2, qcow2::virtual_size(&header).map_err(unfit)?)
    } else {
        (ImageFormat::Raw, length)
    };
    if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
        return Err(unfit("the image is no whole number of sectors of 512 bytes"));
    }
    Ok(SourceImage { path, format, bytes })
}

/// Runs `qemu-img`. `told` receives the progress in ten-thousandths.
async fn run(tool: &Path, args: &[String], told: impl Fn(u64)) -> Result<(), String> {
    let mut command = tokio::process::Command::new(tool);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("{} cannot be run: {error}", tool.display()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (said, words, ended) = tokio::join!(listen(out, told), words(err), child.wait());
    let ended = ended.map_err(|error| format!("{}: {error}", tool.display()))?;
    if ended.success() {
        return Ok(());
    }
    Err(format!("qemu-img {} {ended}: {}", args.first().map_or("", String::as_str), format!("{said} {words}").trim()))
}

/// Reads progress; returns the last other output.
async fn listen(out: Option<impl AsyncRead + Unpin>, told: impl Fn(u64)) -> String {
    let (Some(mut out), mut piece, mut last) = (out, [0; 512], String::new()) else { return String::new() };
    while let Ok(length) = out.read(&mut piece).await
        && length > 0
    {
        let text = String::from_utf8_lossy(&piece[..length]).into_owned();
        match share(&text) {
            Some(share) => told(share),
            None => last = text.trim().chars().take(200).collect(),
        }
    }
    last
}

async fn words(err: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut err) = err {
        // Drain the rest, so that the program does not block.
        let _ = (&mut err).take(MAX_WORDS).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut err, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).trim().chars().take(400).collect()
}

/// Returns the last `(12.34/100%)` of a text in ten-thousandths. Pure.
fn share(text: &str) -> Option<u64> {
    let (before, _) = text.rsplit_once("/100%)")?;
    let (whole, part) = before.rsplit_once('(')?.1.split_once('.')?;
    let (whole, part): (u64, u64) = (whole.parse().ok()?, part.parse().ok()?);
    (whole <= 100 && part < 100).then_some(whole * 100 + part)
}

#[cfg(test)]
#[path = "tests/write.rs"]
mod tests;
