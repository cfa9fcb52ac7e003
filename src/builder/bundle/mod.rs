//! Bundles: programs of Debian packages with libraries and loader, as a squashfs layer for nodes
//! with another C library.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `build` | builds bundles |
//! | `debian` | fetches Debian packages with apt, verifies and unpacks them |
//! | `recipe` | `bundle.toml`: the recipe of a bundle |
//! | `shared_libraries` | resolves shared libraries with the loader of the packages |
//! | `stage` | lays out a bundle: programs, wrappers, libraries and files |
//!
//! ```text
//! bundle.toml ─────────── recipe ───────┐
//!   packages ──────────── debian ───────┼── stage: libexec/ bin/ lib/ share/ ── squashfs ── store
//!   libraries ─ shared_libraries ───────┘
//! ```
//! A node mounts the bundle at `/opt/bundles/<name>`. The bundle's own loader runs each program
//! with the bundle's own libraries, so programs do not interfere with the node's musl or with other
//! bundles.

mod build;
mod debian;
pub mod recipe;
mod shared_libraries;
mod stage;

pub use build::{BundleRequest, build_bundle, recipes_dir};

use super::command::CommandError;
use meshd_types::Architecture;
use std::path::PathBuf;

/// Cause of a failed bundle build.
#[derive(Debug, thiserror::Error)]
pub enum BundleFault {
    #[error("apt knows no package `{0}`")]
    NoPackage(String),
    #[error("the programs need more than {0} packages")]
    TooMany(usize),
    #[error("the recipe names {0}, which none of its packages has")]
    NoFile(String),
    #[error("no package brings {}", .0.join(", "))]
    NoLibrary(Vec<String>),
    #[error(
        "a bundle is built where it would run: this machine is {host}, the recipe is for {expected}"
    )]
    Arch {
        /// Architecture of this host.
        host: &'static str,
        /// Architecture of the recipe.
        expected: Architecture,
    },
    #[error("the layer has {size} bytes and may have {most}: nodes keep it in memory")]
    TooLarge { size: u64, most: u64 },
    #[error("cannot list what {} needs", .path.display())]
    List { path: PathBuf, source: CommandError },
}

meshd_types::hints!(BundleFault {
    BundleFault::NoPackage(_) => "run `apt-get update`, or correct packages in the recipe";
    BundleFault::TooMany(_) => "name fewer programs";
    BundleFault::NoFile(_) => "`dpkg-deb -c` lists what a package has";
    BundleFault::NoLibrary(_) => "add one that does to packages";
});
