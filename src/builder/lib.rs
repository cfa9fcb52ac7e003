//! Builds and imports images and bundles, and manages their versions.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `alpine` | builds an image of kind `alpine` from a recipe: kernel, initramfs, modloop and package repository |
//! | `apk` | Alpine's package format (apk v2): indexes, signatures, versions, dependencies |
//! | `bundle` | bundles: programs of Debian packages with libraries and loader, as a squashfs layer for nodes with another C library |
//! | `command` | runs external programs without a shell and keeps the end of their output for errors |
//! | `error` | errors of an image build |
//! | `import` | imports Alpine's netboot files and packages as a version of an image |
//! | `list` | lists recipes and built images and bundles |
//! | `parts` | parts of an image: its recipe, kernel, initramfs and package repository |
//! | `progress` | progress messages of a build |
//! | `root` | builds an image of kind `root`: any Linux as one squashfs with dm-verity |
//! | `versions` | versions of images and bundles: promote, roll back, prune |
//! | `volumes` | volume files of VMs and images of containers, named by digest |
//! | `work_folder` | the work folder of one build, and the lock against a second build |
//!
//! ```text
//! image.toml ── recipe ──┐                       ┌─ repo       packages, rebuilt from the installed database and signed
//!   wheel ──── fetch ────┼── plan ── alpine ─────┼─ kernel     initramfs by Alpine's mkinitfs, modloop by mksquashfs
//!   kernel ─── fetch ────┘                       └─ store      blobs by digest, then the manifest
//! ```
//! `recipe`, `installed`, `plan` and `modules` are pure. All others run programs in a work folder
//! that is removed after the build. [`meshd_image::catalog::image`] reads the result.

mod alpine;
pub mod apk;
pub mod bundle;
mod command;
mod error;
pub mod import;
mod list;
mod parts;
mod progress;
mod root;
mod versions;
mod volumes;
mod work_folder;

pub use alpine::{BuildRequest, recipe_digest};
pub use bundle::{BundleFault, BundleRequest, build_bundle, recipes_dir};
pub use command::interrupt::{interrupt, is_interrupted};
pub use command::{CommandError, MissingTools, NamespacesDenied, Tool};
pub use error::BuildError;
pub use import::{ImportError, ImportRequest, import};
pub use list::{ImageState, Listed, ListedBundle, list, list_bundles, verify};
pub use progress::{BuildStep, Progress, Quiet};
pub use root::{
    ContainerImport, ContainerImportError, ContainerSource, RootFault, import_container,
};
pub use versions::{
    ArtifactKind, Dropped, KEEP, ListKind, ListOwner, Prune, Pruned, Version, VersionError,
    find_version, previous_version, promote, prune, rollback, versions,
};
pub use volumes::{ContainerImage, VolumeError, VolumeInfo, VolumeKind, Volumes};

use meshd_image::catalog::ImageManifest;
use meshd_model::image_kind::ImageKindName;
use parts::recipe_head;

/// Builds an image, unless it is up to date: same recipe and sources, intact blobs. A recipe with a
/// mirror is an import.
///
/// # Errors
/// An existing image stays; no file is half-written.
pub fn build(request: &BuildRequest, progress: &dyn Progress) -> Result<ImageManifest, BuildError> {
    if recipe_head::kind_of(&request.recipe_dir) == ImageKindName::Root {
        return root::build_root(request, progress);
    }
    if !import::recipe::is_import(&request.recipe_dir) {
        return alpine::build_recipe(request, progress);
    }
    if let Some(current) = alpine::up_to_date(request, &recipe_digest(&request.recipe_dir)?) {
        return Ok(current);
    }
    import(
        &ImportRequest { build: request.clone(), from: None, mirror: None, trust_mirror: false },
        progress,
    )
}
