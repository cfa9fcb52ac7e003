//! Step 5, image: a recipe becomes kernel, initramfs, modloop and packages.
//!
//! ```text
//! image.toml ── recipe ──┐                       ┌─ repo       packages made again from the installed database, signed
//!   wheel ──── fetch ────┼── plan ── build ──────┼─ kernel     initramfs by Alpine's mkinitfs, modloop by mksquashfs
//!   kernel ─── fetch ────┘                       └─ store      blobs by digest, then the manifest
//! ```
//! `recipe`, `installed`, `plan` and `modules` are pure. Everything else runs other programs in a work folder that goes away with the
//! build. [`crate::catalog::image`] reads what is written here.

pub mod apk;
mod build;
pub mod bundle;
mod command;
mod contents;
mod error;
mod fetch;
pub mod import;
mod initrd;
pub mod installed;
mod kernel;
mod keys;
mod list;
mod modules;
pub mod plan;
mod progress;
pub mod recipe;
mod repo;
mod store;
mod versions;
mod volumes;
mod work;

pub use build::{BuildRequest, build, recipe_digest};
pub use bundle::{BundleFault, BundleRequest, ListedBundle, build_bundle, list_bundles, recipes_dir};
pub use command::{CommandError, Tool, missing_tools};
pub use error::BuildError;
pub use import::{ImportError, ImportRequest, import};
pub use list::{ImageState, Listed, list, verify};
pub use progress::{BuildStep, Progress, Quiet};
pub use versions::{
    Dropped, KEEP, Prune, Pruned, Things, Version, VersionError, declare_in_use, find_version, previous_version,
    promote, prune, rollback, versions,
};

pub use volumes::{VolumeError, VolumeInfo, VolumeKind, Volumes};

#[cfg(test)]
mod tests;
