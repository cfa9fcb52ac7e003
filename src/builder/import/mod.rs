//! Imports Alpine's netboot files and packages as a version of an image.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `check` | verifies kernel, modules and initramfs of an import |
//! | `curl` | fetches files with curl, in parallel, with limits on size and time |
//! | `error` | errors of an image import |
//! | `folder` | imports a folder without a recipe: architecture from the kernel, trusted keys from `keys/`, packages from the index |
//! | `packages` | verifies the mirror's index and packages, resolves dependencies, and packs all with an index signed by the site's key |
//! | `recipe` | `image.toml` of an imported image |
//! | `source` | the source of an import: a mirror or a folder |
//!
//! The import verifies the netboot bundle by the digest that the recipe pins, the indexes by
//! Alpine's signature, and each package by its index. Kernel and modules must have the same
//! release. Finally Alpine's apk installs all packages. An absent or invalid file ends the import;
//! nodes keep their present version.

mod check;
mod curl;
mod error;
mod folder;
mod packages;
pub mod recipe;
mod source;

pub use check::{KernelFacts, kernel};
pub use error::ImportError;

use super::{
    alpine::{BuildRequest, recipe_digest},
    command::{IMPORT_TOOLS, require_namespaces, require_tools},
    error::{BuildError, io_error},
    parts::keys,
    progress::{BuildStep, Progress, report_step},
    versions::store,
    work_folder::BuildFolder,
};
use meshd_image::catalog::image::{AlpineParts, Contents, FORMAT, ImageKind, ImageManifest};
use meshd_types::Digest;
use packages::PackageImport;
use recipe::ImportRecipe;
use source::{ImportContext, ImportSource, NetbootFiles};
use std::{path::PathBuf, thread};

/// Input of an import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// Recipe, name and folders.
    pub build: BuildRequest,
    /// Folder that replaces the mirror; a recipe is optional then.
    pub from: Option<PathBuf>,
    /// Mirror that replaces the recipe's.
    pub mirror: Option<String>,
    /// Accepts the mirror's own digest of the netboot bundle if the recipe pins none.
    pub trust_mirror: bool,
}

/// Imports an image. Only files that have changed are downloaded again.
///
/// # Errors
/// The current version stays; no file is half-written.
pub fn import(
    request: &ImportRequest,
    progress: &dyn Progress,
) -> Result<ImageManifest, BuildError> {
    let (recipe, digest, keys) = read_recipe(request)?;
    require_tools(&IMPORT_TOOLS)?;
    require_namespaces()?;
    let work = BuildFolder::begin(&request.build.work_dir, request.build.name.as_str())?;
    let cache = &request.build.cache_dir;
    let scratch = [work.folder("netboot")?, work.folder("packages")?];
    let context = |scratch| ImportContext {
        recipe: &recipe,
        source: request.from.as_deref().map_or(ImportSource::Mirror, ImportSource::Folder),
        trust_mirror: request.trust_mirror,
        cache,
        scratch,
    };
    std::fs::create_dir_all(cache).map_err(io_error("make the folder", cache))?;
    let kernel = context(&scratch[0]);
    let packages = context(&scratch[1]);
    let trusted = work.folder("trusted")?;
    let site_key = keys::repo_key(&request.build.keys_dir, &trusted)?;
    let packages = PackageImport {
        context: &packages,
        keys: &keys,
        site_key: &site_key,
        trusted: &trusted,
        progress,
    };
    let (netboot, made) = thread::scope(|scope| {
        let netboot = scope.spawn(|| fetch_netboot(&kernel, progress));
        let made = packages.make();
        (netboot.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), made)
    });
    let ((netboot, release), made) = (netboot?, made?);
    report_step(progress, BuildStep::Store, || {
        let _lock = store::lock(&request.build.blobs_dir)?;
        let put = |file| store::put_blob(&request.build.blobs_dir, file);
        let parts = ImageKind::Alpine(AlpineParts {
            kernel: put(&netboot.kernel)?,
            initramfs: put(&netboot.initramfs)?,
            modloop: put(&netboot.modloop)?,
            packages: put(&made.initrd)?,
        });
        let netboot = &recipe.netboot;
        let alpine_release =
            made.versions.get("alpine-release").and_then(|version| version.split('-').next());
        let manifest = ImageManifest {
            format: FORMAT,
            name: request.build.name.clone(),
            arch: recipe.arch,
            recipe: digest,
            kernel_release: release,
            kernel_package: format!("alpine-netboot-{}={}", netboot.flavor, netboot.version),
            os_release: alpine_release.unwrap_or(&netboot.version).to_owned(),
            parts,
            packages: made.versions,
            // Alpine's index does not list the files of a package, so services and modules are
            // unknown.
            contents: Contents::default(),
            built_at: store::now(),
        };
        store::finish(&request.build.blobs_dir, &manifest, request.build.promote)
    })
}

/// Returns the recipe, its digest, and the trusted keys: those of the recipe, or those of a folder
/// without a recipe.
fn read_recipe(
    request: &ImportRequest,
) -> Result<(ImportRecipe, Digest, Vec<PathBuf>), BuildError> {
    let recipe_dir = &request.build.recipe_dir;
    if let Some(folder) = request
        .from
        .as_ref()
        .filter(|_| !recipe_dir.join(super::parts::recipe_head::RECIPE_FILE).exists())
    {
        let (recipe, keys) = folder::recipe(folder)?;
        return Ok((recipe, Digest::of(b"imported without a recipe"), keys));
    }
    let mut recipe = recipe::load(recipe_dir).map_err(BuildError::Recipe)?;
    if let Some(url) = &request.mirror {
        url.trim_end_matches('/').clone_into(&mut recipe.mirror.url);
    }
    let keys = recipe.key_files(recipe_dir);
    Ok((recipe, recipe_digest(recipe_dir)?, keys))
}

/// Fetches kernel, initramfs and modloop. Verifies them by their digests and against each other.
fn fetch_netboot(
    context: &ImportContext<'_>,
    progress: &dyn Progress,
) -> Result<(NetbootFiles, String), BuildError> {
    report_step(progress, BuildStep::FetchKernel, || {
        let (netboot, origin) = context.netboot()?;
        let release = check::image(
            &netboot.kernel,
            &netboot.initramfs,
            &netboot.modloop,
            context.recipe.arch,
        )?;
        progress.note(BuildStep::FetchKernel, &format!("kernel {release}, {origin}"));
        Ok((netboot, release))
    })
}
