//! Versions of images and bundles: promote, roll back, prune. The functions change files only;
//! `meshd reload` applies the changes.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `in_use` | what each site needs of a folder of blobs |
//! | `store` | writes blobs and manifests atomically |

mod in_use;
pub(crate) mod store;

pub use in_use::{ListKind, ListOwner};

use super::error::{BuildError, io_error};
use meshd_image::catalog::{
    BundleManifest, ImageError, ImageManifest,
    image::{blob_path, load_version},
    versions::{BUNDLES, IMAGES, InUseError, VersionFolder, in_use, version_names},
};
use meshd_types::{BundleName, Digest, ImageName, Timestamp};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use store::{lock, set_current};

/// Number of newest versions of each image that [`prune`] always keeps.
pub const KEEP: usize = 3;
/// Minimum length of a digest prefix that names a version.
const LEAST_PREFIX: usize = 4;

/// One version of an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Version {
    pub version: Digest,
    /// Booting nodes receive this version.
    pub current: bool,
    /// `rollback` makes this version current.
    pub previous: bool,
    /// An in-use list contains this version.
    pub in_use: bool,
    pub manifest: ImageManifest,
}

/// Cause of a failed promotion, rollback or pruning.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The prefix matches no version, or several versions.
    #[error("image `{name}` has {} of that beginning with `{prefix}`", if .found.is_empty() { "no version" } else { "several versions" })]
    NoUniqueVersion {
        name: ImageName,
        /// Requested prefix, truncated.
        prefix: String,
        /// Versions with this prefix.
        found: Vec<Digest>,
        /// All versions.
        all: Vec<Digest>,
    },
    /// The image has no previous version.
    #[error("image `{0}` has no version before the current one")]
    NoPrevious(ImageName),
    /// A version is damaged.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An in-use list cannot be read.
    #[error("cannot prune: the list of used blobs is unreadable")]
    InUse(#[from] InUseError),
    /// A file could not be read or written.
    #[error(transparent)]
    Files(#[from] BuildError),
}

meshd_types::hints!(VersionError {
    VersionError::NoUniqueVersion { found, all, .. } => "{}", prefix_hint(found, all);
    VersionError::NoPrevious(_) => "`meshd image list` shows what there is to promote";
    VersionError::InUse(_) => "correct the list, or remove it";
    @source VersionError::Image(source) => source;
    @source VersionError::Files(source) => source;
});

fn prefix_hint(found: &[Digest], all: &[Digest]) -> String {
    let shown = if found.is_empty() { all } else { found };
    let names: Vec<String> = shown.iter().map(Digest::short).collect();
    if names.is_empty() {
        "it is not built".to_owned()
    } else {
        format!("write more of one of {}", names.join(", "))
    }
}

/// Returns all versions of an image, the newest first, without those with a damaged manifest.
/// [`super::list`] reports a damaged current version.
///
/// # Errors
/// A folder or list cannot be read.
pub fn versions(blobs_dir: &Path, name: &ImageName) -> Result<Vec<Version>, VersionError> {
    let version_folder = VersionFolder::image(blobs_dir, name);
    let pointer = version_folder.pointer().map_err(io_error("read", version_folder.folder()))?;
    let used = in_use(blobs_dir)?;
    let view = |manifest: ImageManifest| {
        let version = manifest.version();
        Version {
            version,
            current: pointer.current == Some(version),
            previous: pointer.previous == Some(version),
            in_use: used.contains(&version),
            manifest,
        }
    };
    let known = known_versions(&version_folder)?;
    let manifests = known.iter().filter_map(|version| load_version(blobs_dir, name, version).ok());
    let mut all: Vec<Version> = manifests.map(view).collect();
    all.sort_by_key(|version| (std::cmp::Reverse(version.manifest.built_at), version.version));
    Ok(all)
}

fn known_versions(version_folder: &VersionFolder) -> Result<BTreeSet<Digest>, BuildError> {
    version_folder.versions().map_err(io_error("read", version_folder.folder()))
}

/// Verifies every blob of a version and makes the version current. `prefix` is the beginning of its
/// digest.
///
/// # Errors
/// The version does not exist or is damaged, or a file cannot be written. The current version
/// stays.
pub fn promote(
    blobs_dir: &Path,
    name: &ImageName,
    prefix: &str,
) -> Result<ImageManifest, VersionError> {
    let _lock = lock(blobs_dir)?;
    switch(blobs_dir, name, &find_by_prefix(blobs_dir, name, prefix)?)
}

/// Returns the version with this digest prefix, as [`promote`] selects it.
///
/// # Errors
/// The prefix matches no version, or several.
pub fn find_version(
    blobs_dir: &Path,
    name: &ImageName,
    prefix: &str,
) -> Result<ImageManifest, VersionError> {
    let _lock = lock(blobs_dir)?;
    Ok(load_version(blobs_dir, name, &find_by_prefix(blobs_dir, name, prefix)?)?)
}

/// Returns the version that [`rollback`] would make current.
///
/// # Errors
/// The image has no previous version, or its manifest cannot be read.
pub fn previous_version(blobs_dir: &Path, name: &ImageName) -> Result<ImageManifest, VersionError> {
    let _lock = lock(blobs_dir)?;
    Ok(load_version(blobs_dir, name, &previous(blobs_dir, name)?)?)
}

fn find_by_prefix(
    blobs_dir: &Path,
    name: &ImageName,
    prefix: &str,
) -> Result<Digest, VersionError> {
    let all = known_versions(&VersionFolder::image(blobs_dir, name))?;
    let has_prefix =
        |version: &&Digest| prefix.len() >= LEAST_PREFIX && version.to_string().starts_with(prefix);
    let found: Vec<Digest> = all.iter().filter(has_prefix).copied().collect();
    let [version] = found[..] else {
        let prefix = prefix.chars().take(80).collect();
        let all = all.into_iter().collect();
        return Err(VersionError::NoUniqueVersion { name: name.clone(), prefix, found, all });
    };
    Ok(version)
}

/// Makes the previous version current. A second call restores the version that was current before
/// the first.
///
/// # Errors
/// The image has no previous version, that version is damaged, or a file cannot be written. The
/// current version stays.
pub fn rollback(blobs_dir: &Path, name: &ImageName) -> Result<ImageManifest, VersionError> {
    let _lock = lock(blobs_dir)?;
    switch(blobs_dir, name, &previous(blobs_dir, name)?)
}

fn previous(blobs_dir: &Path, name: &ImageName) -> Result<Digest, VersionError> {
    let version_folder = VersionFolder::image(blobs_dir, name);
    let pointer = version_folder.pointer().map_err(io_error("read", version_folder.folder()))?;
    pointer.previous.ok_or_else(|| VersionError::NoPrevious(name.clone()))
}

fn switch(
    blobs_dir: &Path,
    name: &ImageName,
    version: &Digest,
) -> Result<ImageManifest, VersionError> {
    let manifest = load_version(blobs_dir, name, version)?;
    let image = meshd_image::catalog::Image::load(blobs_dir, manifest)?;
    set_current(&VersionFolder::image(blobs_dir, name), version)?;
    Ok(image.manifest)
}

/// Result of [`prune`]: removed versions and blobs, or those that a dry run would remove.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pruned {
    pub versions: Vec<Dropped>,
    /// Number of removed blobs.
    pub blobs: usize,
    /// Size of the removed blobs in bytes.
    pub bytes: u64,
}

/// A removed version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Name of the image or bundle.
    pub name: String,
    pub version: Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactKind {
    Images,
    Bundles,
}

/// Input of [`prune`].
#[derive(Clone, Debug)]
pub struct Prune {
    pub kind: ArtifactKind,
    /// The only image or bundle to prune; `None` for all.
    pub name: Option<String>,
    /// Number of newest versions to keep of each.
    pub keep: usize,
    /// Versions to keep in addition to the in-use lists under `blobs_dir`.
    pub in_use: BTreeSet<Digest>,
    /// Report without removing files.
    pub dry_run: bool,
}

/// Removes old versions of images or bundles, then all blobs without a version. Keeps current,
/// previous, newest and in-use versions. A crash leaves every remaining version complete.
///
/// # Errors
/// An in-use list is invalid, or a file cannot be read or removed.
pub fn prune(blobs_dir: &Path, request: &Prune) -> Result<Pruned, VersionError> {
    let _lock = lock(blobs_dir)?;
    let mut found = PruneSelection::default();
    images(blobs_dir, request, &mut found)?;
    bundles(blobs_dir, request, &mut found)?;
    let PruneSelection { removed, kept_blobs, manifests } = found;
    let mut pruned = Pruned { versions: removed, ..Pruned::default() };
    if !request.dry_run {
        for path in manifests {
            fs::remove_file(&path).map_err(io_error("remove", path))?;
        }
    }
    remove_blobs(blobs_dir, &kept_blobs, request.dry_run, &mut pruned)?;
    Ok(pruned)
}

/// Versions to remove, and blobs to keep.
#[derive(Default)]
struct PruneSelection {
    removed: Vec<Dropped>,
    /// Manifests of the versions to remove.
    manifests: Vec<PathBuf>,
    /// Blobs of the versions to keep.
    kept_blobs: BTreeSet<Digest>,
}

impl Prune {
    fn covers(&self, kind: ArtifactKind, name: &str) -> bool {
        self.kind == kind && self.name.as_ref().is_none_or(|only| only == name)
    }
}

fn images(
    blobs_dir: &Path,
    request: &Prune,
    found: &mut PruneSelection,
) -> Result<(), VersionError> {
    let names = version_names(blobs_dir, IMAGES).map_err(io_error("read", blobs_dir))?;
    for name in names.iter().filter_map(|name| name.parse::<ImageName>().ok()) {
        let covered = request.covers(ArtifactKind::Images, name.as_str());
        let all = versions(blobs_dir, &name)?;
        found.kept_blobs.extend(unreadable(blobs_dir, &name, &all)?);
        let last: BTreeSet<Digest> =
            all.iter().take(request.keep).map(|version| version.version).collect();
        for version in all {
            let used = version.current
                || version.previous
                || version.in_use
                || request.in_use.contains(&version.version);
            if used || last.contains(&version.version) || !covered {
                found
                    .kept_blobs
                    .extend(version.manifest.parts.parts().iter().map(|part| part.blob.digest));
            } else {
                found.removed.push(Dropped { name: name.to_string(), version: version.version });
                found
                    .manifests
                    .push(VersionFolder::image(blobs_dir, &name).version_path(&version.version));
            }
        }
    }
    Ok(())
}

/// Selects versions of bundles. The digest of the only blob names the version.
fn bundles(
    blobs_dir: &Path,
    request: &Prune,
    found: &mut PruneSelection,
) -> Result<(), VersionError> {
    let root = blobs_dir.join(BUNDLES);
    let names = version_names(blobs_dir, BUNDLES).map_err(io_error("read", &root))?;
    let used = in_use(blobs_dir)?;
    for name in names.iter().filter_map(|name| name.parse::<BundleName>().ok()) {
        let version_folder = VersionFolder::bundle(blobs_dir, &name);
        let pointer =
            version_folder.pointer().map_err(io_error("read", version_folder.folder()))?;
        let built = |version: &Digest| {
            let text = fs::read(version_folder.version_path(version)).ok()?;
            serde_json::from_slice::<BundleManifest>(&text).ok().map(|manifest| manifest.built_at)
        };
        let mut all: Vec<(Option<Timestamp>, Digest)> = known_versions(&version_folder)?
            .into_iter()
            .map(|version| (built(&version), version))
            .collect();
        all.sort_by_key(|(built_at, version)| (std::cmp::Reverse(*built_at), *version));
        for (at, (built_at, version)) in all.into_iter().enumerate() {
            let pointed = [pointer.current, pointer.previous].contains(&Some(version));
            let needed = pointed || used.contains(&version) || request.in_use.contains(&version);
            // Unreadable manifests may belong to a later release, so their versions are kept.
            if needed
                || built_at.is_none()
                || at < request.keep
                || !request.covers(ArtifactKind::Bundles, name.as_str())
            {
                found.kept_blobs.insert(version);
            } else {
                found.removed.push(Dropped { name: name.to_string(), version });
                found.manifests.push(version_folder.version_path(&version));
            }
        }
    }
    Ok(())
}

/// Returns the blobs of unreadable manifests, which may belong to a later release. [`prune`] keeps
/// them.
fn unreadable(
    blobs_dir: &Path,
    name: &ImageName,
    readable: &[Version],
) -> Result<Vec<Digest>, BuildError> {
    let version_folder = VersionFolder::image(blobs_dir, name);
    let others = known_versions(&version_folder)?
        .into_iter()
        .filter(|version| readable.iter().all(|other| other.version != *version));
    let paths = others
        .map(|version| version_folder.version_path(&version))
        .chain([version_folder.current_path()]);
    let mut found = Vec::new();
    for text in paths.filter_map(|path| fs::read_to_string(path).ok()) {
        found.extend(
            text.split(|c: char| !c.is_ascii_hexdigit())
                .filter_map(|word| word.parse::<Digest>().ok()),
        );
    }
    Ok(found)
}

fn remove_blobs(
    blobs_dir: &Path,
    kept_blobs: &BTreeSet<Digest>,
    dry_run: bool,
    pruned: &mut Pruned,
) -> Result<(), BuildError> {
    let folder = blobs_dir.join("sha256");
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io_error("read", &folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(io_error("read", &folder))?;
        let digest = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok());
        let Some(digest) = digest.filter(|digest| !kept_blobs.contains(digest)) else { continue };
        let path = blob_path(blobs_dir, &digest);
        let size = entry.metadata().map_err(io_error("read", &path))?.len();
        if !dry_run {
            fs::remove_file(&path).map_err(io_error("remove", path))?;
        }
        pruned.blobs += 1;
        pruned.bytes += size;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
