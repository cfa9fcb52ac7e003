//! Errors of an image build.

use super::parts::{installed::DatabaseError, modules::ModulesError, plan::PlanError};
use crate::{
    bundle::BundleFault,
    command::{CommandError, MappedNamespacesDenied, MissingTools, NamespacesDenied},
    import::ImportError,
    root::RootFault,
};
use meshd_config::Faults;
use meshd_image::catalog::{bundle::BundleError, image::ImageError};
use meshd_types::{Digest, ImageName};
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{0}")]
    Recipe(Faults),
    #[error(transparent)]
    Tools(#[from] MissingTools),
    #[error(transparent)]
    Namespaces(#[from] NamespacesDenied),
    #[error(transparent)]
    MappedNamespaces(#[from] MappedNamespacesDenied),
    #[error("another build of `{0}` is under way")]
    Busy(String),
    #[error("cannot {what}")]
    Command { what: &'static str, hint: &'static str, source: CommandError },
    #[error("cannot {what} {}", .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} has SHA-256 {found}, the recipe pins {pinned}", .path.display())]
    WrongDigest { path: PathBuf, found: Digest, pinned: Digest },
    #[error("apt does not say where package `{package}` comes from ({why})")]
    Kernel { package: String, why: String },
    #[error("the installed database of the source is invalid")]
    Database(#[from] DatabaseError),
    #[error("the recipe does not fit the source: {0}")]
    Plan(PlanError),
    #[error("{0}")]
    Modules(ModulesError),
    /// Alpine's init differs from the patched one.
    #[error(
        "the text of an [[initramfs.patch]] occurs {times} times in Alpine's init and must occur once: `{find}`"
    )]
    Patch { times: usize, find: String },
    /// A file of the source differs from its package.
    #[error(
        "{path} of package `{package}` has SHA-1 {found} and the database states {stated}: the source's maker changed it"
    )]
    Changed {
        package: String,
        path: String,
        /// Actual checksum.
        found: String,
        /// Checksum in the database.
        stated: String,
    },
    /// The installed repository differs from the database.
    #[error("installing the new packages gives something else than the source has: {0}")]
    Unproven(String),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("build image{}", .image.as_ref().map_or_else(String::new, |name| format!(" {name}")))]
    Root {
        /// `None` until the build is complete.
        image: Option<ImageName>,
        source: RootFault,
    },
    #[error(transparent)]
    Bundle(#[from] BundleFault),
    #[error("the bundle cannot be read back after building")]
    BundleReadBack(#[from] BundleError),
    #[error("the image cannot be read back after building")]
    ReadBack(#[from] ImageError),
}

meshd_types::hints!(BuildError {
    BuildError::Busy(_) => "wait for it to end";
    BuildError::Command { hint, .. } => "{hint}";
    BuildError::WrongDigest { .. } => "remove it and build again, or correct the recipe";
    BuildError::Kernel { .. } => "run `apt-get update`, or name another in the recipe";
    BuildError::Changed { .. } => "say under [[packages.restore]] how it is brought back";
    @source BuildError::Tools(source) => source;
    @source BuildError::Namespaces(source) => source;
    @source BuildError::MappedNamespaces(source) => source;
    @source BuildError::Root { source, .. } => source;
    @source BuildError::Plan(source) => source;
    @source BuildError::Modules(source) => source;
    @source BuildError::Import(source) => source;
    @source BuildError::Bundle(source) => source;
    @source BuildError::BundleReadBack(source) => source;
    @source BuildError::ReadBack(source) => source;
});

impl From<RootFault> for BuildError {
    fn from(source: RootFault) -> Self {
        BuildError::Root { image: None, source }
    }
}

/// Returns a conversion of an I/O error into the error of an operation on a file.
pub(crate) fn io_error(
    what: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.into();
    move |source| BuildError::Io { what, path, source }
}

/// Returns a conversion of a program's failure into the error of an operation.
pub(crate) fn failed(what: &'static str) -> impl FnOnce(CommandError) -> BuildError {
    move |source| BuildError::Command { what, hint: "", source }
}
