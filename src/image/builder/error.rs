//! Errors of an image build.

use super::parts::{installed::DatabaseError, modules::NoSuchModule, plan::PlanError};
use crate::{
    builder::{
        bundle::BundleFault,
        command::{CommandError, Tool},
        import::ImportError,
    },
    catalog::{bundle::BundleError, image::ImageError},
};
use meshd_config::Faults;
use meshd_types::Digest;
use std::{io, path::PathBuf};

/// Why an image was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The recipe has faults.
    #[error("{0}")]
    Recipe(Faults),
    /// Programs are missing.
    #[error("{}", missing(.0))]
    Tools(Vec<Tool>),
    /// A normal user may not make user namespaces here.
    #[error(
        "building as a normal user needs user namespaces, and this machine does not permit them; \
         build as root, or permit them (sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000)"
    )]
    Namespaces(#[source] CommandError),
    /// Another process builds the same image.
    #[error("another build of `{0}` is under way; wait for it to end")]
    Busy(String),
    /// A program failed.
    #[error("cannot {what}{}", if .hint.is_empty() { String::new() } else { format!("; {}", .hint) })]
    Command {
        /// What was being done.
        what: &'static str,
        /// What to do next.
        hint: &'static str,
        /// The program's failure.
        source: CommandError,
    },
    /// A file could not be read or written.
    #[error("cannot {what} {}", .path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        source: io::Error,
    },
    /// What was downloaded is not what the recipe pins.
    #[error("{} has SHA-256 {found}, the recipe pins {pinned}; remove it and build again, or correct the recipe", .path.display())]
    WrongDigest {
        path: PathBuf,
        found: Digest,
        /// The digest that it should have.
        pinned: Digest,
    },
    /// apt does not know a package, or says something unexpected about it.
    #[error(
        "apt does not say where package `{package}` comes from ({why}); run `apt-get update`, or name another in the recipe"
    )]
    Kernel { package: String, why: String },
    /// The installed database cannot be read.
    #[error("the source's installed database makes no sense")]
    Database(#[from] DatabaseError),
    /// The recipe does not fit the source.
    #[error("the recipe does not fit the source: {0}")]
    Plan(PlanError),
    /// A module is missing.
    #[error("{0}")]
    Modules(NoSuchModule),
    /// Alpine's init is not the one that the recipe patches.
    #[error("the text of an [[initramfs.patch]] occurs {times} times in Alpine's init and must occur once: `{find}`")]
    Patch { times: usize, find: String },
    /// A file of the source is not the one that its package says.
    #[error(
        "{path} of package `{package}` has SHA-1 {found} and the database states {stated}: the source's maker changed it; \
         say under [[packages.restore]] how it is brought back"
    )]
    Changed {
        package: String,
        path: String,
        /// Checksum of what would be packed.
        found: String,
        /// Checksum that the database states.
        stated: String,
    },
    /// The repository does not install to what the database says.
    #[error("installing the new packages gives something else than the source has: {0}")]
    Unproven(String),
    /// It could not be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A bundle could not be built.
    #[error(transparent)]
    Bundle(#[from] BundleFault),
    /// The bundle was built and cannot be read back.
    #[error("the bundle cannot be read back after building")]
    BundleReadBack(#[from] BundleError),
    /// The image was built and cannot be read back.
    #[error("the image cannot be read back after building")]
    ReadBack(#[from] ImageError),
}

fn missing(tools: &[Tool]) -> String {
    let programs: Vec<&str> = tools.iter().map(|tool| tool.program).collect();
    let mut packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    format!("programs are missing: {}; run `apt-get install {}`", programs.join(", "), packages.join(" "))
}

/// Says of an I/O error what was being done to which file.
pub(crate) fn io_error(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.into();
    move |source| BuildError::Io { what, path, source }
}

/// Says of a failed program what it was for.
pub(crate) fn failed(what: &'static str) -> impl FnOnce(CommandError) -> BuildError {
    move |source| BuildError::Command { what, hint: "", source }
}
