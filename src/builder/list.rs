//! Lists recipes and built images and bundles.

use super::{
    alpine::recipe_digest,
    bundle::{recipe::BUNDLE_FILE, recipes_dir},
    parts::recipe_head::RECIPE_FILE,
    versions::{Version, versions},
};
use meshd_image::catalog::{
    bundle::{BundleError, BundleManifest, load_bundle_manifest},
    image::{ImageError, ImageManifest, load_image, load_manifest},
    versions::{BUNDLES, IMAGES, version_names},
};
use meshd_types::{BundleName, Digest, ImageName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fs, io, path::Path, str::FromStr};

/// State of an image or bundle relative to its recipe.
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

impl ImageState {
    /// Compares the recipe of a built image or bundle with its present recipe.
    fn of_built(built: &Digest, recipe_dir: &Path, has_recipe: bool) -> Self {
        let is_current = || recipe_digest(recipe_dir).is_ok_and(|digest| digest == *built);
        match has_recipe {
            false => ImageState::NoRecipe,
            true if is_current() => ImageState::Built,
            true => ImageState::Stale,
        }
    }
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
        Listed {
            name,
            state: ImageState::NotBuilt,
            version: None,
            manifest: None,
            versions: Vec::new(),
            problem,
        }
    }
}

/// Lists every image that has a recipe or a manifest, by name. Blobs are not read: [`verify`] reads
/// them.
pub fn list(blobs_dir: &Path, images_dir: &Path) -> io::Result<Vec<Listed>> {
    let recipes: BTreeSet<ImageName> = recipe_names(images_dir, RECIPE_FILE)?;
    let built =
        version_names(blobs_dir, IMAGES)?.iter().filter_map(|name| name.parse().ok()).collect();
    Ok(recipes
        .union(&built)
        .map(|name| describe(blobs_dir, images_dir, name, recipes.contains(name)))
        .collect())
}

fn describe(blobs_dir: &Path, images_dir: &Path, name: &ImageName, has_recipe: bool) -> Listed {
    let (state, manifest, problem) = match load_manifest(blobs_dir, name) {
        Ok(manifest) => {
            let state =
                ImageState::of_built(&manifest.recipe, &images_dir.join(name.as_str()), has_recipe);
            (state, Some(manifest), None)
        }
        Err(ImageError::NotBuilt { .. }) => (ImageState::NotBuilt, None, None),
        Err(error) => (ImageState::Broken, None, Some(error.to_string())),
    };
    let version = manifest.as_ref().map(ImageManifest::version);
    // An unreadable in-use list is ignored here; `prune` reports it and stops.
    let versions = versions(blobs_dir, name).unwrap_or_default();
    Listed { name: name.clone(), state, version, manifest, versions, problem }
}

/// Returns the names of the sub-folders that contain a recipe.
fn recipe_names<N: FromStr + Ord>(folder: &Path, recipe_file: &str) -> io::Result<BTreeSet<N>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().filter(|_| path.join(recipe_file).is_file());
        found.extend(name.and_then(|name| name.to_str()?.parse::<N>().ok()));
    }
    Ok(found)
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
    let mut names: BTreeSet<BundleName> = recipe_names(&recipes, BUNDLE_FILE)?;
    names.extend(version_names(blobs_dir, BUNDLES)?.iter().filter_map(|name| name.parse().ok()));
    Ok(names.into_iter().map(|name| describe_bundle(blobs_dir, &recipes, name)).collect())
}

fn describe_bundle(blobs_dir: &Path, recipes: &Path, name: BundleName) -> ListedBundle {
    let recipe_dir = recipes.join(name.as_str());
    let (state, manifest, problem) = match load_bundle_manifest(blobs_dir, &name) {
        Ok(manifest) => {
            let has_recipe = recipe_dir.join(BUNDLE_FILE).is_file();
            (ImageState::of_built(&manifest.recipe, &recipe_dir, has_recipe), Some(manifest), None)
        }
        Err(BundleError::NotBuilt { .. }) => (ImageState::NotBuilt, None, None),
        Err(error) => (ImageState::Broken, None, Some(error.to_string())),
    };
    ListedBundle { name, state, manifest, problem }
}

/// Verifies every blob of an image.
pub fn verify(blobs_dir: &Path, name: &ImageName) -> Result<ImageManifest, ImageError> {
    load_image(blobs_dir, name).map(|image| image.manifest)
}
