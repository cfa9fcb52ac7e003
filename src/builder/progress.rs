//! Progress messages of a build; the caller displays them.

use super::error::BuildError;
use std::{
    fmt,
    time::{Duration, Instant},
};

/// Steps of a build in order. `Packages`, `Initramfs` and `Modloop` run in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuildStep {
    /// Download of the wheel from PyPI, or from the cache.
    FetchUserland,
    /// Download of the kernel package from Debian, or from the cache.
    FetchKernel,
    /// Extraction of the root filesystem from the wheel.
    UnpackUserland,
    /// Extraction of kernel and modules; unused modules are removed.
    UnpackKernel,
    /// Reading of the mirror's indexes and resolution of the recipe's packages.
    Index,
    /// Download and verification of packages from the mirror, or from the cache.
    FetchPackages,
    /// Fetching of the sources of a root: mmdebstrap, skopeo, or files of this machine.
    FetchRoot,
    /// Reading of a root's archives.
    UnpackRoot,
    /// Creation and signing of every package.
    Packages,
    /// Creation of the initramfs by Alpine's mkinitfs.
    Initramfs,
    /// Creation of the modloop.
    Modloop,
    /// Creation of a root's squashfs and hash tree.
    Squashfs,
    /// Writing of blobs and manifest.
    Store,
}

impl BuildStep {
    pub const ALL: [BuildStep; 13] = [
        BuildStep::FetchUserland,
        BuildStep::FetchKernel,
        BuildStep::UnpackUserland,
        BuildStep::UnpackKernel,
        BuildStep::Index,
        BuildStep::FetchPackages,
        BuildStep::FetchRoot,
        BuildStep::UnpackRoot,
        BuildStep::Packages,
        BuildStep::Initramfs,
        BuildStep::Modloop,
        BuildStep::Squashfs,
        BuildStep::Store,
    ];
}

impl fmt::Display for BuildStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BuildStep::FetchUserland => "fetch userland",
            BuildStep::FetchKernel => "fetch kernel",
            BuildStep::UnpackUserland => "unpack userland",
            BuildStep::UnpackKernel => "unpack kernel",
            BuildStep::Index => "package index",
            BuildStep::FetchPackages => "fetch packages",
            BuildStep::FetchRoot => "fetch root",
            BuildStep::UnpackRoot => "unpack root",
            BuildStep::Packages => "packages",
            BuildStep::Initramfs => "initramfs",
            BuildStep::Modloop => "modloop",
            BuildStep::Squashfs => "squashfs",
            BuildStep::Store => "store",
        })
    }
}

/// Receiver of progress messages. Several steps may run at once, on several threads.
pub trait Progress: Sync {
    /// A step begins.
    fn begin(&self, step: BuildStep);
    /// A remark about a step, such as the use of the cache.
    fn note(&self, step: BuildStep, text: &str);
    /// A step succeeded. A failed step has no end; the error of the build contains the cause.
    fn end(&self, step: BuildStep, took: Duration);
}

/// Runs a step and reports its beginning, and its end if it succeeds.
pub(super) fn report_step<T>(
    progress: &dyn Progress,
    step: BuildStep,
    work: impl FnOnce() -> Result<T, BuildError>,
) -> Result<T, BuildError> {
    let begun = Instant::now();
    progress.begin(step);
    let done = work()?;
    progress.end(step, begun.elapsed());
    Ok(done)
}

/// Discards all messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _: BuildStep) {}
    fn note(&self, _: BuildStep, _: &str) {}
    fn end(&self, _: BuildStep, _: Duration) {}
}
