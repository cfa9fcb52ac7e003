//! Builds an image of kind `root`: any Linux as one squashfs with dm-verity; and images of containers.
//!
//! | module | content |
//! | --- | --- |
//! | `alpine` | installs Alpine's packages from an image of kind `alpine` |
//! | `archive` | reads archives into a tree, and writes a tree as one archive |
//! | `contents` | the store of the contents of files |
//! | `error` | faults of a root and of its sources |
//! | `filesystem` | the squashfs and its hash tree |
//! | `inspect` | what a root contains: kernel, init, release and packages |
//! | `limits` | bounds of the sources |
//! | `machine_state` | removes keys, seeds and IDs of the machine that made the root |
//! | `modules_initrd` | the initramfs: kernel modules and firmware |
//! | `oci` | reads an OCI layout, and imports images of containers |
//! | `recipe` | `image.toml` |
//! | `sources` | fetches the sources as archives |
//! | `tree` | the files of a root as an index, in which layers are merged |
//!
//! ```text
//! image.toml ── recipe ── sources ── archives ── archive::read ── tree, contents ──┬── inspect ── kernel
//!                            │                                                     ├── modules_initrd
//!                           oci                                                    └── archive::write ── filesystem
//! ```
//! Sources are not trusted: their archives are read by this program, which writes contents into
//! numbered files. docs/adr/0047-root-images.md explains the choice.

mod alpine;
mod archive;
mod contents;
mod error;
mod filesystem;
mod inspect;
mod limits;
mod machine_state;
mod modules_initrd;
mod oci;
mod recipe;
mod sources;
mod tree;
#[cfg(test)]
mod tests;

pub use error::RootFault;
pub use oci::container::{
    ContainerImport, ContainerImportError, ContainerSource, import_container,
};

use super::{
    alpine::{BuildRequest, recipe_digest, up_to_date},
    command::{ROOT_TOOLS, require_mapped_namespaces, require_tools},
    error::{BuildError, io_error},
    progress::{BuildStep, Progress, report_step},
    versions::store,
    work_folder::BuildFolder,
};
use archive::read::{Reader, Used};
use contents::ContentStore;
use inspect::Root;
use limits::LIMITS;
use meshd_image::catalog::image::{FORMAT, ImageKind, ImageManifest, RootParts};
use meshd_types::Digest;
use recipe::{AlpineSource, RootRecipe, RootSource, SourceSpec};
use sources::Fetched;
use std::collections::BTreeMap;
use tree::{InodeKind, RootTree};

/// Builds an image of kind `root`, unless it is up to date: same recipe and sources, intact blobs.
///
/// # Errors
/// An existing image stays; no file is half-written.
pub(super) fn build_root(
    request: &BuildRequest,
    progress: &dyn Progress,
) -> Result<ImageManifest, BuildError> {
    let recipe = recipe::load(&request.recipe_dir).map_err(BuildError::Recipe)?;
    let named = |error| match error {
        BuildError::Root { source, .. } => {
            BuildError::Root { image: Some(request.name.clone()), source }
        }
        other => other,
    };
    build(request, &recipe, progress).map_err(named)
}

fn build(
    request: &BuildRequest,
    recipe: &RootRecipe,
    progress: &dyn Progress,
) -> Result<ImageManifest, BuildError> {
    check_place(request, recipe)?;
    let digest = recipe_digest(&request.recipe_dir)?;
    let ready = match &recipe.source {
        RootSource::Alpine(source) => {
            let image = alpine::build_image(request, source, progress)?;
            ReadySource::Alpine { source, image: Box::new(image) }
        }
        RootSource::Archives(source) => ReadySource::Archives(source),
    };
    let known = match &ready {
        ReadySource::Alpine { image, .. } => Some(alpine::digests(image)),
        ReadySource::Archives(source) => sources::unchanged_digests(source, recipe.arch)?,
    };
    if let Some(known) = known
        && let Some(manifest) = up_to_date(request, &digest)
        && has_sources(&manifest, &known)
    {
        return Ok(manifest);
    }
    require_tools(&ROOT_TOOLS)?;
    require_mapped_namespaces()?;
    let work = BuildFolder::begin(&request.work_dir, request.name.as_str())?;
    let fetched = report_step(progress, BuildStep::FetchRoot, || match &ready {
        ReadySource::Alpine { source, image } => {
            alpine::fetch(source, image, recipe.arch, &request.blobs_dir, &work)
        }
        ReadySource::Archives(source) => sources::fetch(source, recipe.arch, &work),
    })?;
    let Source { fetched, mut tree, mut contents } = read_source(fetched, &work, progress)?;
    machine_state::remove(&mut tree, &mut contents)
        .map_err(io_error("write", work.path("contents")))?;
    check_passed_names(&tree)?;
    let root = Root { tree: &tree, contents: &contents, arch: recipe.arch };
    let maker = Maker { request, recipe, progress, work: &work, root };
    maker.make(digest, fetched)
}

/// A source that can be fetched.
enum ReadySource<'a> {
    Alpine { source: &'a AlpineSource, image: Box<ImageManifest> },
    Archives(&'a SourceSpec),
}

/// A source, whose archives are merged into one tree.
struct Source {
    fetched: Fetched,
    tree: RootTree,
    contents: ContentStore,
}

/// Reads the archives of a source.
fn read_source(
    fetched: Fetched,
    work: &BuildFolder,
    progress: &dyn Progress,
) -> Result<Source, BuildError> {
    let mut contents = ContentStore::new(work.folder("contents")?);
    let mut tree = RootTree::new(LIMITS);
    report_step(progress, BuildStep::UnpackRoot, || {
        let mut reader = Reader {
            tree: &mut tree,
            contents: &mut contents,
            limits: LIMITS,
            used: Used::default(),
        };
        for archive in &fetched.archives {
            reader.add(archive)?;
        }
        let Used { entries, left_out, .. } = reader.used;
        check_passed_names(&tree)?;
        let note = format!("{entries} entries, {left_out} devices and pipes left out");
        progress.note(BuildStep::UnpackRoot, &note);
        Ok(())
    })?;
    Ok(Source { fetched, tree, contents })
}

/// Refuses a root whose paths were not all followed.
fn check_passed_names(tree: &RootTree) -> Result<(), RootFault> {
    if tree.is_exhausted() { Err(RootFault::TooManyNames(LIMITS)) } else { Ok(()) }
}

/// The files of a recipe's folder are its digest, which `image list` computes each time.
fn check_place(request: &BuildRequest, recipe: &RootRecipe) -> Result<(), RootFault> {
    let RootSource::Archives(source) = &recipe.source else { return Ok(()) };
    let path = match source {
        SourceSpec::Oci { path, .. } | SourceSpec::Tar(path) | SourceSpec::Folder(path) => path,
        SourceSpec::Debian(_) | SourceSpec::Registry { .. } => return Ok(()),
    };
    let found = path.canonicalize().map_err(|source| {
        let name = path.display().to_string();
        RootFault::Read { name, source }
    })?;
    let is_inside = request.recipe_dir.canonicalize().is_ok_and(|folder| found.starts_with(folder));
    if is_inside { Err(RootFault::SourceInRecipe(path.clone())) } else { Ok(()) }
}

/// Returns whether an image was built from sources with these digests.
fn has_sources(manifest: &ImageManifest, known: &BTreeMap<String, Digest>) -> bool {
    match &manifest.parts {
        ImageKind::Root(parts) => {
            known.iter().all(|(name, digest)| parts.sources.get(name) == Some(digest))
        }
        ImageKind::Alpine(_) => false,
    }
}

/// Makes the parts of an image from a complete tree.
struct Maker<'a> {
    request: &'a BuildRequest,
    recipe: &'a RootRecipe,
    progress: &'a dyn Progress,
    work: &'a BuildFolder,
    root: Root<'a>,
}

impl Maker<'_> {
    fn make(&self, recipe: Digest, fetched: Fetched) -> Result<ImageManifest, BuildError> {
        let root = &self.root;
        let kernel = root.kernel()?;
        root.check_init()?;
        let packages = root.packages()?;
        let date = newest(root.tree);
        let modules = report_step(self.progress, BuildStep::Initramfs, || {
            modules_initrd::make(root, &kernel, &self.recipe.modules, date, self.work)
        })?;
        check_passed_names(root.tree)?;
        let (file, verity) = report_step(self.progress, BuildStep::Squashfs, || {
            filesystem::make(root.tree, root.contents, date, self.work)
        })?;
        report_step(self.progress, BuildStep::Store, || {
            let blobs_dir = &self.request.blobs_dir;
            let _lock = store::lock(blobs_dir)?;
            let parts = RootParts {
                kernel: store::put_blob(blobs_dir, &kernel.file)?,
                modules: store::put_blob(blobs_dir, &modules.file)?,
                root: store::put_blob(blobs_dir, &file)?,
                verity,
                system: root.system()?,
                sources: fetched.digests,
                nic_drivers: modules.nic_drivers,
            };
            let of_packages = || {
                let package = format!("linux-image-{}", kernel.release);
                let version = packages.get(&package).map_or("unknown", String::as_str);
                format!("{package}={version}")
            };
            let manifest = ImageManifest {
                format: FORMAT,
                name: self.request.name.clone(),
                arch: self.recipe.arch,
                recipe,
                kernel_package: fetched.kernel_package.unwrap_or_else(of_packages),
                os_release: root.os_release()?,
                parts: ImageKind::Root(parts),
                contents: root.contents(&kernel.release)?,
                kernel_release: kernel.release,
                packages,
                built_at: store::now(),
            };
            store::finish(blobs_dir, &manifest, self.request.promote)
        })
    }
}

/// Returns the time of the newest file, in seconds.
fn newest(tree: &RootTree) -> u64 {
    let files = tree.paths().filter(|(.., inode)| matches!(inode.kind, InodeKind::File { .. }));
    files.map(|(.., inode)| inode.meta.time).max().unwrap_or(0)
}
