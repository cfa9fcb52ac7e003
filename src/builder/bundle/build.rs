//! Builds bundles.

use super::{
    BundleFault,
    debian::Tree,
    recipe::{self, BundleRecipe},
    shared_libraries::{Libraries, LibrarySearch},
    stage,
};
use crate::{
    alpine::recipe_digest,
    command::{BUNDLE_TOOLS, ToolCommand, require_tools},
    error::{BuildError, failed, io_error},
    progress::{BuildStep, Progress, report_step},
    versions::store,
    work_folder::BuildFolder,
};
use meshd_image::catalog::{
    bundle::{BundleManifest, FORMAT, MAX_LAYER, load_bundle},
    versions::VersionFolder,
};
use meshd_types::{Architecture, BundleName, Digest};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Input and folders of a bundle build.
#[derive(Clone, Debug)]
pub struct BundleRequest {
    pub recipe_dir: PathBuf,
    pub name: BundleName,
    /// Folder of layer and manifest.
    pub blobs_dir: PathBuf,
    /// Folder of downloads.
    pub cache_dir: PathBuf,
    /// Work folder; removed at the end.
    pub work_dir: PathBuf,
}

/// Returns the folder of bundle recipes.
pub fn recipes_dir(images_dir: &Path) -> PathBuf {
    images_dir.join("bundles")
}

/// Builds a bundle, unless it is up to date: same recipe, intact layer.
///
/// # Errors
/// An existing bundle stays; no file is half-written.
pub fn build_bundle(
    request: &BundleRequest,
    progress: &dyn Progress,
) -> Result<BundleManifest, BuildError> {
    let recipe = recipe::load(&request.recipe_dir).map_err(BuildError::Recipe)?;
    let digest = recipe_digest(&request.recipe_dir)?;
    let current = load_bundle(&request.blobs_dir, &request.name).ok().map(|bundle| bundle.manifest);
    if let Some(manifest) = current.filter(|manifest| manifest.recipe == digest) {
        return Ok(manifest);
    }
    require_tools(&BUNDLE_TOOLS)?;
    if Architecture::host() != Some(recipe.arch) {
        let host = std::env::consts::ARCH;
        return Err(BundleFault::Arch { host, expected: recipe.arch }.into());
    }
    // `bundle.` separates lock and folder from those of an image of the same name.
    let work = BuildFolder::begin(&request.work_dir, &format!("bundle.{}", request.name))?;
    let build = BundleBuild { request, recipe: &recipe, work: &work, progress };
    let contents = report_step(progress, BuildStep::FetchPackages, || build.assemble())?;
    report_step(progress, BuildStep::Store, || build.store(digest, contents))
}

/// Commands, and packages with their versions.
type BundleContents = (Vec<String>, BTreeMap<String, String>);

struct BundleBuild<'a> {
    request: &'a BundleRequest,
    recipe: &'a BundleRecipe,
    work: &'a BuildFolder,
    progress: &'a dyn Progress,
}

impl BundleBuild<'_> {
    /// Fetches packages and stages the bundle; returns its commands and packages.
    fn assemble(&self) -> Result<BundleContents, BuildError> {
        let scratch = self.work.folder("fetch")?;
        let root = self.work.folder("tree")?;
        let stage = self.work.folder("stage")?;
        let mut tree = Tree::new(&self.request.cache_dir, &scratch, root);
        tree.add(&self.recipe.packages)?;
        let elf_files = stage::programs_and_files(self.recipe, tree.root(), &stage)?;
        let libraries = Libraries::new(tree.root(), self.recipe.arch);
        // Adds dependencies, level by level, until every library is found.
        let (mut found, mut absent): LibrarySearch = libraries.resolve(&elf_files)?;
        while !absent.is_empty() && tree.add_dependencies()? {
            self.progress
                .note(BuildStep::FetchPackages, &format!("{} packages", tree.packages.len()));
            (found, absent) = libraries.resolve(&elf_files)?;
        }
        let loader = libraries.loader_path().filter(|_| absent.is_empty());
        let loader = loader.ok_or_else(|| BundleFault::NoLibrary(absent.into_iter().collect()))?;
        stage::libraries(&found, (libraries.loader, &loader), &stage)?;
        let programs = stage::starters(&self.request.name, self.recipe, libraries.loader, &stage)?;
        Ok((programs, tree.packages))
    }

    fn store(
        &self,
        recipe: Digest,
        (programs, packages): BundleContents,
    ) -> Result<BundleManifest, BuildError> {
        let layer = self.work.path("layer");
        ToolCommand::new("mksquashfs")
            .arg(self.work.path("stage"))
            .arg(&layer)
            .args([
                "-all-root",
                "-noappend",
                "-no-progress",
                "-quiet",
                "-no-xattrs",
                "-comp",
                "zstd",
            ])
            .args(["-Xcompression-level", "15", "-mkfs-time", "0", "-all-time", "0"])
            .run()
            .map_err(failed("make the layer"))?;
        let size = fs::metadata(&layer).map_err(io_error("read", &layer))?.len();
        if size > MAX_LAYER {
            return Err(BundleFault::TooLarge { size, most: MAX_LAYER }.into());
        }
        let blobs_dir = &self.request.blobs_dir;
        let _lock = store::lock(blobs_dir)?;
        let manifest = BundleManifest {
            format: FORMAT,
            name: self.request.name.clone(),
            arch: self.recipe.arch,
            recipe,
            layer: store::put_blob(blobs_dir, &layer)?,
            programs,
            packages,
            built_at: store::now(),
        };
        let version_folder = VersionFolder::bundle(blobs_dir, &self.request.name);
        store::put_version(&version_folder, &manifest.layer.digest, &manifest)?;
        store::set_current(&version_folder, &manifest.layer.digest)?;
        // Reads the layer back from disk, because nodes are served from there.
        Ok(load_bundle(blobs_dir, &self.request.name)?.manifest)
    }
}
