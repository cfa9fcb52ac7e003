//! Lists recipes and built images.

use super::{
    build::recipe_digest,
    parts::recipe::RECIPE_FILE,
    versions::{Version, versions},
};
use crate::catalog::{
    image::{ImageError, ImageManifest, load_image, load_manifest},
    versions::{IMAGES, version_names},
};
use meshd_types::{Digest, ImageName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fs, path::Path};

/// State of an image relative to its recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageState {
    /// Built from the present recipe.
    Built,
    /// Built from an earlier recipe; it boots until the next build.
    Stale,
    /// Not built.
    NotBuilt,
    /// The manifest is invalid.
    Broken,
    /// Built, but there is no recipe.
    NoRecipe,
}

/// An image in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    pub name: ImageName,
    pub state: ImageState,
    /// Current version, if built.
    pub version: Option<Digest>,
    pub manifest: Option<ImageManifest>,
    /// All versions, the newest first.
    pub versions: Vec<Version>,
    /// Fault of the manifest.
    pub problem: Option<String>,
}

impl Listed {
    /// Creates the entry of an image with neither recipe nor manifest.
    pub fn unknown(name: ImageName) -> Self {
        let problem = Some("there is no recipe".to_owned());
        Listed { name, state: ImageState::NotBuilt, version: None, manifest: None, versions: Vec::new(), problem }
    }
}

/// Lists every image that has a recipe or a manifest, by name. Blobs are not read: [`verify`] reads them.
pub fn list(blobs_dir: &Path, images_dir: &Path) -> std::io::Result<Vec<Listed>> {
    let recipes = names(images_dir, |path| path.join(RECIPE_FILE).is_file().then(|| path.file_name())?)?;
    let built = version_names(blobs_dir, IMAGES)?.iter().filter_map(|name| name.parse().ok()).collect();
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
    // An unreadable in-use list is ignored here; `prune` reports it and stops.
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

/// Verifies every blob of an image.
pub fn verify(blobs_dir: &Path, name: &ImageName) -> Result<ImageManifest, ImageError> {
    load_image(blobs_dir, name).map(|image| image.manifest)
}
