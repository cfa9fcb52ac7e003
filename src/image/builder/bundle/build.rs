//! Builds and lists bundles.

use super::{
    BundleFault,
    debian::Tree,
    needs::{Libraries, LibrarySearch},
    recipe::{self, BUNDLE_FILE, BundleRecipe},
    stage,
};
use crate::{
    builder::{
        build::recipe_digest,
        command::{BUNDLE_TOOLS, ToolCommand, missing},
        error::{BuildError, failed, io_error},
        list::ImageState,
        progress::{BuildStep, Progress},
        store,
        work_folder::BuildFolder,
    },
    catalog::{
        bundle::{BundleError, BundleManifest, FORMAT, MAX_LAYER, load_bundle, load_bundle_manifest},
        versions::{BUNDLES, VersionFolder, version_names},
    },
};
use meshd_types::{BundleName, Digest, Timestamp};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
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
pub fn build_bundle(request: &BundleRequest, progress: &dyn Progress) -> Result<BundleManifest, BuildError> {
    let recipe = recipe::load(&request.recipe_dir).map_err(BuildError::Recipe)?;
    let digest = recipe_digest(&request.recipe_dir)?;
    let there = load_bundle(&request.blobs_dir, &request.name).ok().map(|bundle| bundle.manifest);
    if let Some(manifest) = there.filter(|manifest| manifest.recipe == digest) {
        return Ok(manifest);
    }
    let missing = missing(&BUNDLE_TOOLS);
    if !missing.is_empty() {
        return Err(BuildError::Tools(missing));
    }
    let (here, wanted) = (std::env::consts::ARCH, recipe.arch.to_string());
    if here != wanted {
        return Err(BundleFault::Arch { here, wanted }.into());
    }
    // `bundle.` separates lock and folder from those of an image of the same name.
    let work = BuildFolder::begin(&request.work_dir, &format!("bundle.{}", request.name))?;
    let build = BundleBuild { request, recipe: &recipe, work: &work, progress };
    let (programs, tree) = build.assemble()?;
    build.store(digest, programs, tree)
}

/// Commands, and packages with their versions.
type BundleContents = (Vec<String>, Vec<(String, String)>);

struct BundleBuild<'a> {
    request: &'a BundleRequest,
    recipe: &'a BundleRecipe,
    work: &'a BuildFolder,
    progress: &'a dyn Progress,
}

impl BundleBuild<'_> {
    /// Fetches packages and stages the bundle; returns its commands and packages.
    fn assemble(&self) -> Result<BundleContents, BuildError> {
        let (scratch, root, stage) =
            (self.work.folder("fetch")?, self.work.folder("tree")?, self.work.folder("stage")?);
        let begun = Instant::now();
        self.progress.begin(BuildStep::FetchPackages);
        let mut tree = Tree::new(&self.request.cache_dir, &scratch, root);
        tree.add(&self.recipe.packages)?;
        let elf_files = stage::programs_and_files(self.recipe, tree.root(), &stage)?;
        let libraries = Libraries::new(tree.root())
            .ok_or_else(|| BundleFault::Arch { here: std::env::consts::ARCH, wanted: self.recipe.arch.to_string() })?;
        // Adds dependencies, level by level, until every library is found.
        let (mut found, mut absent): LibrarySearch = libraries.resolve(&elf_files)?;
        while !absent.is_empty() && tree.add_dependencies()? {
            self.progress.note(BuildStep::FetchPackages, &format!("{} packages", tree.packages.len()));
            (found, absent) = libraries.resolve(&elf_files)?;
        }
        let loader = libraries.loader_path().filter(|_| absent.is_empty());
        let loader = loader.ok_or_else(|| BundleFault::NoLibrary(absent.into_iter().collect()))?;
        self.progress.end(BuildStep::FetchPackages, begun.elapsed());
        stage::libraries(&found, (libraries.loader, &loader), &stage)?;
        let programs = stage::starters(&self.request.name, self.recipe, libraries.loader, &stage)?;
        Ok((programs, tree.packages.into_iter().collect()))
    }

    fn store(
        &self,
        recipe: Digest,
        programs: Vec<String>,
        packages: Vec<(String, String)>,
    ) -> Result<BundleManifest, BuildError> {
        let begun = Instant::now();
        self.progress.begin(BuildStep::Store);
        let layer = self.work.path("layer");
        ToolCommand::new("mksquashfs")
            .arg(self.work.path("stage"))
            .arg(&layer)
            .args(["-all-root", "-noappend", "-no-progress", "-quiet", "-no-xattrs", "-comp", "zstd"])
            .args(["-Xcompression-level", "15", "-mkfs-time", "0", "-all-time", "0"])
            .run()
            .map_err(failed("make the layer"))?;
        let size = fs::metadata(&layer).map_err(io_error("read", &layer))?.len();
        if size > MAX_LAYER {
            return Err(BundleFault::TooLarge { size, most: MAX_LAYER }.into());
        }
        let blobs_dir = &self.request.blobs_dir;
        let _lock = store::lock(blobs_dir)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let manifest = BundleManifest {
            format: FORMAT,
            name: self.request.name.clone(),
            arch: self.recipe.arch,
            recipe,
            layer: store::put_blob(blobs_dir, &layer)?,
            programs,
            packages: packages.into_iter().collect(),
            built_at: Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap_or(0)),
        };
        let version_folder = VersionFolder::bundle(blobs_dir, &self.request.name);
        store::put_version(&version_folder, &manifest.layer.digest, &manifest)?;
        store::set_current(&version_folder, &manifest.layer.digest)?;
        self.progress.end(BuildStep::Store, begun.elapsed());
        // Reads the layer back from disk, because nodes are served from there.
        Ok(load_bundle(blobs_dir, &self.request.name)?.manifest)
    }
}

/// A bundle in a list.
#[derive(Clone, Debug, Serialize)]
pub struct ListedBundle {
    pub name: BundleName,
    pub state: ImageState,
    /// Manifest, if built.
    pub manifest: Option<BundleManifest>,
    /// Fault of the manifest.
    pub problem: Option<String>,
}

/// Lists every bundle that has a recipe or a manifest, by name. Layers are not read.
pub fn list_bundles(blobs_dir: &Path, images_dir: &Path) -> io::Result<Vec<ListedBundle>> {
    let recipes = recipes_dir(images_dir);
    let mut names: BTreeSet<BundleName> =
        version_names(blobs_dir, BUNDLES)?.iter().filter_map(|name| name.parse().ok()).collect();
    match fs::read_dir(&recipes) {
        Ok(entries) => names.extend(entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            path.join(BUNDLE_FILE).is_file().then(|| path.file_name()?.to_str()?.parse().ok())?
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(names.into_iter().map(|name| describe(blobs_dir, &recipes, name)).collect())
}

fn describe(blobs_dir: &Path, recipes: &Path, name: BundleName) -> ListedBundle {
    let recipe = recipes.join(name.as_str());
    let (state, manifest, problem) = match load_bundle_manifest(blobs_dir, &name) {
        Ok(manifest) if !recipe.join(BUNDLE_FILE).is_file() => (ImageState::NoRecipe, Some(manifest), None),
        Ok(manifest) => {
            let current = recipe_digest(&recipe).is_ok_and(|digest| digest == manifest.recipe);
            (if current { ImageState::Built } else { ImageState::Stale }, Some(manifest), None)
        }
        Err(BundleError::NotBuilt { .. }) => (ImageState::NotBuilt, None, None),
        Err(error) => (ImageState::Broken, None, Some(error.to_string())),
    };
    ListedBundle { name, state, manifest, problem }
}
