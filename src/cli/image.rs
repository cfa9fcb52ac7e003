//! `meshd image`: what nodes boot. Manifests and blobs are files, so no verb needs a running meshd.

use super::{
    Context, Failure,
    print::{Output, bytes, table},
};
use crate::catalog::{ImageError, ImageManifest, image};
use crate::config::{Site, suggest};
use crate::id::{ImageName, ProfileName};
use clap::Subcommand;
use serde::Serialize;
use std::{collections::BTreeSet, path::Path};

#[derive(Debug, Subcommand)]
pub(super) enum Image {
    /// All images: recipes, and what was built from them
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Compare every blob of an image with its digest
    Verify {
        /// Name of an image, or `all` that are built
        #[arg(default_value = "all")]
        name: String,
    },
}

impl Image {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        match self {
            Image::List { output } => output.print(&views(&site), |views| list(views)),
            Image::Verify { name } => verify(&site, &name),
        }
    }
}

/// One image in a listing.
#[derive(Debug, Serialize)]
struct ImageView {
    name: ImageName,
    recipe: bool,
    built: bool,
    /// What was built, or `null`.
    manifest: Option<ImageManifest>,
    /// Why it cannot be used although there is something.
    problem: Option<String>,
    profiles: Vec<ProfileName>,
}

/// Folders of recipes, images of profiles, and manifests, each name once.
fn names(site: &Site) -> BTreeSet<ImageName> {
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let recipes = files(&site.images_dir).into_iter().filter(|path| path.join("image.toml").exists());
    let manifests = files(&site.blobs_dir.join("images")).into_iter().filter(|path| path.extension().is_some());
    let stems = recipes.chain(manifests.map(|path| path.with_extension("")));
    let found = stems.filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    found.chain(site.profiles.values().map(|profile| profile.image.clone())).collect()
}

fn views(site: &Site) -> Vec<ImageView> {
    let view = |name: ImageName| {
        let (manifest, problem) = match image::load_manifest(&site.blobs_dir, &name) {
            Ok(manifest) => (Some(manifest), None),
            Err(ImageError::NotBuilt { .. }) => (None, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let uses = site.profiles.values().filter(|profile| profile.image == name);
        let profiles = uses.map(|profile| profile.name.clone()).collect();
        let recipe = site.images_dir.join(name.as_str()).join("image.toml").exists();
        ImageView { recipe, built: manifest.is_some(), manifest, problem, profiles, name }
    };
    names(site).into_iter().map(view).collect()
}

fn list(views: &[ImageView]) -> String {
    let rows = views.iter().map(|view| {
        let state = match (&view.manifest, &view.problem, view.recipe) {
            (Some(_), ..) => "built",
            (_, Some(_), _) => "unusable",
            (.., true) => "not built",
            (.., false) => "no recipe",
        };
        let manifest = view.manifest.as_ref();
        let size: Option<u64> = manifest.map(|one| one.parts.each().iter().map(|(_, blob)| blob.size).sum());
        let profiles: Vec<&str> = view.profiles.iter().map(ProfileName::as_str).collect();
        [
            view.name.to_string(),
            state.to_owned(),
            manifest.map(|one| one.alpine_release.clone()).unwrap_or_default(),
            manifest.map(|one| one.kernel_release.clone()).unwrap_or_default(),
            size.map(bytes).unwrap_or_default(),
            manifest.map(|one| one.built_at.to_string()).unwrap_or_default(),
            profiles.join(" "),
        ]
    });
    table(["name", "state", "alpine", "kernel", "size", "built at", "profiles"], rows)
}

/// One image by the name that somebody typed, or all that are known.
pub(super) fn chosen(site: &Site, name: &str) -> Result<Vec<ImageName>, Failure> {
    let known = names(site);
    if name == "all" {
        return Ok(known.into_iter().collect());
    }
    let found = known.iter().find(|image| image.as_str() == name);
    found.map(|image| vec![image.clone()]).ok_or_else(|| {
        let hint = suggest(name, known.iter().map(ImageName::as_str));
        Failure::new(format!("there is no image `{name}` in {}", site.images_dir.display()), hint)
    })
}

fn verify(site: &Site, name: &str) -> Result<(), Failure> {
    let (mut sound, mut bad) = (0, Vec::new());
    for image in chosen(site, name)? {
        match image::load_image(&site.blobs_dir, &image) {
            Ok(loaded) => {
                sound += 1;
                let size: u64 = loaded.manifest.parts.each().iter().map(|(_, blob)| blob.size).sum();
                eprintln!("{image}: every blob has its digest ({})", bytes(size));
            }
            // All that are built: one that is not has nothing to verify.
            Err(ImageError::NotBuilt { .. }) if name == "all" => {}
            Err(error) => bad.push(Failure::of(&error)),
        }
    }
    if bad.is_empty() && sound == 0 {
        return Err(Failure::new("no image is built", "build them: meshd image build all"));
    }
    let last = bad.pop();
    for failure in &bad {
        eprintln!("{failure}");
    }
    last.map_or(Ok(()), Err)
}
