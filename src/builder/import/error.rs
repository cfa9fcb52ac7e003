//! Errors of an image import.

use crate::{
    apk::{closure::MissingPackage, index::IndexError, signature::SignatureError},
    command::CommandError,
};
use meshd_types::{Architecture, Digest};
use std::{io, path::PathBuf};

/// Cause of a failed image import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The download of a file from the mirror failed.
    #[error("cannot fetch {url}")]
    Fetch { url: String, source: CommandError },
    /// The mirror publishes no digest of its netboot bundle, and the recipe pins none.
    #[error("the mirror publishes no digest of {url} (.sha512 or .sha256)")]
    NoDigest {
        /// URL of the netboot bundle.
        url: String,
    },
    /// The recipe pins no digest of the netboot bundle, and the request does not trust the mirror.
    #[error(
        "the recipe does not pin {url}, and a mirror's own digest proves nothing about the mirror"
    )]
    NotPinned {
        /// URL of the netboot bundle.
        url: String,
        /// Digest of the bundle that the mirror sent.
        found: Digest,
    },
    /// The digest of a file differs from the published or pinned digest.
    #[error(
        "{file} has {found}, and {publisher} says {stated}: it is damaged or was exchanged, so nothing was imported"
    )]
    Digest {
        file: String,
        found: String,
        /// Source of the expected digest.
        publisher: String,
        /// Expected digest.
        stated: String,
    },
    /// The signature of an index is missing or invalid.
    #[error("the index {file} {source}")]
    Signature { file: String, source: SignatureError },
    /// A package index is invalid.
    #[error("the index {file} is invalid")]
    Index { file: String, source: IndexError },
    /// An archive is damaged.
    #[error("{file} is damaged")]
    Damaged { file: String, source: io::Error },
    /// Dependencies of the recipe's packages cannot be resolved.
    #[error("the packages cannot be had whole:{}", lines(.0))]
    Lacks(Vec<MissingPackage>),
    /// The index lists packages that the mirror does not have.
    #[error("the mirror's index names packages that the mirror does not have: {}", .0.join(", "))]
    Absent(Vec<String>),
    /// A package differs from its index record.
    #[error("package {file} {why}, so nothing was imported")]
    Package { file: String, why: String },
    /// A required file does not exist.
    #[error("{} holds no {what}", .folder.display())]
    NoFile {
        /// Searched folder.
        folder: PathBuf,
        what: String,
        hint: &'static str,
    },
    /// A link in the netboot bundle or folder leads out of it.
    #[error("{} is a link to a file elsewhere, so nothing was imported", .file.display())]
    Outside { file: PathBuf },
    /// A file is larger than its kind may be.
    #[error("{} has {size} bytes, more than {limit}, so nothing was imported", .file.display())]
    TooLarge { file: PathBuf, size: u64, limit: u64 },
    /// The kernel file is invalid.
    #[error("the kernel {} {why}, so nothing was imported", .file.display())]
    Kernel {
        file: PathBuf,
        /// The fault, as a phrase that follows the file name.
        why: String,
    },
    /// The modloop file is invalid.
    #[error("the modloop {} {why}, so nothing was imported", .file.display())]
    Modloop {
        file: PathBuf,
        /// The fault, as a phrase that follows the file name.
        why: String,
    },
    /// The initramfs file is invalid.
    #[error("the initramfs {} {why}, so nothing was imported", .file.display())]
    Initramfs {
        file: PathBuf,
        /// The fault, as a phrase that follows the file name.
        why: String,
    },
    /// Kernel and modloop have different releases, so the node would have no drivers.
    #[error("the kernel is {kernel} and the modloop has modules for {}", .modloop.join(", "))]
    Mismatch {
        /// Release of the kernel.
        kernel: String,
        /// Releases for which the modloop contains modules.
        modloop: Vec<String>,
    },
    /// The kernel is for another architecture than the recipe.
    #[error("the kernel is for {found} and the recipe is for {expected}")]
    Arch {
        /// Architecture of the kernel.
        found: Architecture,
        /// Architecture of the recipe.
        expected: Architecture,
    },
    /// The trial installation of the imported packages with apk failed.
    #[error("Alpine's apk cannot install the packages that were put together")]
    Unproven(#[source] CommandError),
}

meshd_types::hints!(ImportError {
    ImportError::Fetch { .. } => "check that the mirror is reachable and has this release";
    ImportError::NoDigest { .. } => "write netboot.sha256 into the recipe";
    ImportError::NotPinned { found, .. } => "compare its digest with a source that you trust, then add to [netboot] of image.toml: sha256 = \"{found}\" (`meshd image import --trust-mirror` imports it without a pin)";
    ImportError::Signature { .. } => "check the mirror, and mirror.keys of the recipe";
    ImportError::Damaged { .. } => "fetch it again";
    ImportError::Absent(_) => "retry when a sync of the mirror has ended";
    ImportError::NoFile { hint, .. } => "{hint}";
    ImportError::Mismatch { .. } => "take both from the same release";
    ImportError::Arch { .. } => "take the files of the right architecture";
});

fn lines(missing: &[MissingPackage]) -> String {
    missing.iter().map(|dependency| format!("\n  {dependency}")).collect()
}
