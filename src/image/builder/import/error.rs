//! Errors of an image import.

use crate::builder::{
    apk::{closure::MissingPackage, index::IndexError, signature::SignatureError},
    command::CommandError,
};
use meshd_types::Arch;
use std::{io, path::PathBuf};

/// Why an image was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The mirror did not give a file.
    #[error("cannot fetch {url}; is the mirror reachable, and does it have this release?")]
    Fetch {
        url: String,
        /// curl's failure.
        source: CommandError,
    },
    /// The mirror publishes no digest of its netboot bundle, and the recipe pins none.
    #[error("the mirror publishes no digest of {url} (.sha512 or .sha256); write netboot.sha256 into the recipe")]
    NoDigest {
        /// Of what.
        url: String,
    },
    /// A file is not the one whose digest was published or pinned.
    #[error(
        "{file} has {found}, and {publisher} says {stated}; it is damaged or was exchanged, so nothing was imported"
    )]
    Digest {
        file: String,
        found: String,
        /// Who says what it should be.
        publisher: String,
        /// What it should be.
        stated: String,
    },
    /// An index cannot be believed.
    #[error("the index {file} {source}; check the mirror, and mirror.keys of the recipe")]
    Signature { file: String, source: SignatureError },
    /// An index makes no sense.
    #[error("the index {file} makes no sense")]
    Index { file: String, source: IndexError },
    /// An archive is damaged.
    #[error("{file} is damaged; fetch it again")]
    Damaged { file: String, source: io::Error },
    /// The packages of the recipe cannot be had whole.
    #[error("the packages cannot be had whole:{}", lines(.0))]
    Lacks(Vec<MissingPackage>),
    /// The index promises what the mirror does not have.
    #[error("the mirror's index names packages that the mirror does not have: {}; is a sync under way?", .0.join(", "))]
    Absent(Vec<String>),
    /// A package is not the one that the index describes.
    #[error("package {file} {why}; nothing was imported")]
    Package { file: String, why: String },
    /// Something that must be there is not.
    #[error("{} holds no {what}; {hint}", .folder.display())]
    NoFile {
        /// Where it was looked for.
        folder: PathBuf,
        what: String,
        hint: &'static str,
    },
    /// The kernel is none.
    #[error("the kernel {} {why}; nothing was imported", .file.display())]
    Kernel {
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The modloop is none.
    #[error("the modloop {} {why}; nothing was imported", .file.display())]
    Modloop {
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The initramfs is none.
    #[error("the initramfs {} {why}; nothing was imported", .file.display())]
    Initramfs {
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Kernel and modules are of different releases: the node would have no drivers.
    #[error("the kernel is {kernel} and the modloop has modules for {}; take both from the same release", .modloop.join(", "))]
    Mismatch {
        /// Release of the kernel.
        kernel: String,
        /// Releases that the modloop has modules for.
        modloop: Vec<String>,
    },
    /// The kernel is for another kind of machine.
    #[error("the kernel is for {found} and the recipe is for {wanted}; take the files of the right architecture")]
    Arch {
        /// What the kernel is for.
        found: Arch,
        /// What the recipe is for.
        wanted: Arch,
    },
    /// apk itself cannot install what was put together.
    #[error("Alpine's apk cannot install the packages that were put together")]
    Unproven(#[source] CommandError),
}

fn lines(lacks: &[MissingPackage]) -> String {
    lacks.iter().map(|lack| format!("\n  {lack}")).collect()
}
