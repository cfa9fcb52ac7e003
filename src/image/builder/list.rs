//! Lists recipes and built images.

use super::{
    build::recipe_digest,
    parts::recipe::RECIPE_FILE,
    versions::{Version, versions},
};
use crate::catalog::{
    image::{ImageError, ImageManifest, load_image, load_manifest},
    versions::{IMAGES, shelves},
};
use meshd_types::{Digest, ImageName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fs, path::Path};

/// How a recipe and what was built from it stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageState {
    /// Built from the recipe as it is.
    Built,
    /// Built from an earlier recipe; it boots, and a build makes it new.
    Stale,
    /// A recipe that was never built.
    NotBuilt,
    /// A built image whose manifest cannot be used.
    Broken,
    /// A built image without a recipe here.
    NoRecipe,
}

/// One image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    pub name: ImageName,
    pub state: ImageState,
    /// The version that nodes get, if it is built.
    pub version: Option<Digest>,
    pub manifest: Option<ImageManifest>,
    /// All versions, the newest first.
    pub versions: Vec<Version>,
    /// Why it is broken.
    pub problem: Option<String>,
}

impl Listed {
    /// An image that somebody names and that has neither recipe nor manifest.
    pub fn unknown(name: ImageName) -> Self {
        let problem = Some("there is no recipe".to_owned());
        Listed { name, state: ImageState::NotBuilt, version: None, manifest: None, versions: Vec::new(), problem }
    }
}

/// Every image that has a recipe or a manifest, by name. Blobs are not read: [`verify`] does that.
///
/// # Errors
/// A folder is there and cannot be read.
pub fn list(blobs_dir: &Path, images_dir: &Path) -> std::io::Result<Vec<Listed>> {
    let recipes = names(images_dir, |path| path.join(RECIPE_FILE).is_file().then(|| path.file_name())?)?;
    let built = shelves(blobs_dir, IMAGES)?.iter().filter_map(|name| name.parse().ok()).collect();
    Ok(recipes.union(&built).map(|name| describe(blobs_dir, images_dir, name, recipes.contains(name))).collect())
}

fn describe(blobs_dir: &Path, images_dir: &Path, name: &ImageName, has_recipe: bool) -> Listed {
    let (state, manifest, problem) = match load_manifest(blobs_dir, name) {
        Ok(manifest) if !has_recipe => (ImageState::NoRecipe, Some(manifest), None),
        Ok(manifest) => {
            let current = recipe_digest(&images_dir.join(name.as_str())).is_ok_and(|digest| digest == manifest.recipe);
            (if current { ImageState::Built } else { ImageState::Stale }, Some(manifest), None)
        }
        Err(ImageError::NotBuilt { .. }) => (ImageState::NotBuilt, None, None),
        Err(error) => (ImageState::Broken, None, Some(error.to_string())),
    };
    let version = manifest.as_ref().map(ImageManifest::version);
    // A list of what is in use that cannot be read stops `prune`, which says so; it hides no version here.
    let versions = versions(blobs_dir, name).unwrap_or_default();
    Listed { name: name.clone(), state, version, manifest, versions, problem }
}

fn names(folder: &Path, name: impl Fn(&Path) -> Option<&std::ffi::OsStr>) -> std::io::Result<BTreeSet<ImageName>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let path = entry?.path();
        found.extend(name(&path).and_then(|name| name.to_str()?.parse::<ImageName>().ok()));
    }
    Ok(found)
}

/// Reads every blob of an image and compares it with its digest.
///
/// # Errors
/// The first blob that is missing or damaged, by name.
pub fn verify(blobs_dir: &Path, name: &ImageName) -> Result<ImageManifest, ImageError> {
    load_image(blobs_dir, name).map(|image| image.manifest)
}
