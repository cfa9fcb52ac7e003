//! `meshd image`: what nodes boot. Manifests and blobs are files, so no verb needs a running meshd.

use super::{
    Context, Failure,
    print::{Output, bytes, table, write},
    progress::Drawing,
};
use crate::catalog::{ImageError, ImageManifest};
use crate::config::{Site, suggest};
use crate::id::{ImageName, ProfileName};
use crate::image::{self, BuildError, BuildRequest, ImageState, Listed};
use clap::Subcommand;
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(super) enum Image {
    /// All images: recipes, and what was built from them
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Build an image from its recipe; instant when it is there already
    Build {
        /// Name of an image, or `all` that profiles name
        #[arg(default_value = "all")]
        name: String,
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
            Image::List { output } => output.print(&views(&site)?, |views| list(views)),
            Image::Build { name } => build(&site, &name),
            Image::Verify { name } => verify(&site, &name),
        }
    }
}

/// One image in a listing.
#[derive(Debug, Serialize)]
struct ImageView {
    #[serde(flatten)]
    image: Listed,
    /// The profiles that boot it.
    profiles: Vec<ProfileName>,
}

/// All that have a recipe or a manifest, and those that profiles only dream of.
fn known(site: &Site) -> Result<Vec<Listed>, Failure> {
    let read = image::list(&site.blobs_dir, &site.images_dir);
    let mut all = read.map_err(|error| {
        let folders = format!("{} or {}", site.images_dir.display(), site.blobs_dir.display());
        Failure::new(format!("cannot read {folders}: {error}"), "check [site].images_dir and [site].blobs_dir")
    })?;
    for name in site.profiles.values().map(|profile| &profile.image) {
        if all.iter().all(|listed| listed.name != *name) {
            let (state, manifest, problem) = (ImageState::NotBuilt, None, Some("there is no recipe".to_owned()));
            all.push(Listed { name: name.clone(), state, manifest, problem });
        }
    }
    Ok(all)
}

fn views(site: &Site) -> Result<Vec<ImageView>, Failure> {
    let view = |image: Listed| {
        let uses = site.profiles.values().filter(|profile| profile.image == image.name);
        ImageView { profiles: uses.map(|profile| profile.name.clone()).collect(), image }
    };
    Ok(known(site)?.into_iter().map(view).collect())
}

fn size(manifest: &ImageManifest) -> u64 {
    manifest.parts.each().iter().map(|(_, blob)| blob.size).sum()
}

fn list(views: &[ImageView]) -> String {
    let rows = views.iter().map(|ImageView { image, profiles }| {
        let state = match image.state {
            ImageState::Built => "built",
            ImageState::Stale => "stale: the recipe has changed",
            ImageState::NotBuilt => "not built",
            ImageState::Broken => "broken",
            ImageState::NoRecipe => "built, without recipe",
        };
        let manifest = image.manifest.as_ref();
        let profiles: Vec<&str> = profiles.iter().map(ProfileName::as_str).collect();
        [
            image.name.to_string(),
            state.to_owned(),
            manifest.map(|one| one.alpine_release.clone()).unwrap_or_default(),
            manifest.map(|one| one.kernel_release.clone()).unwrap_or_default(),
            manifest.map(|one| bytes(size(one))).unwrap_or_default(),
            manifest.map(|one| one.built_at.to_string()).unwrap_or_default(),
            profiles.join(" "),
        ]
    });
    table(["name", "state", "alpine", "kernel", "size", "built at", "profiles"], rows)
}

/// One image by the name that somebody typed.
fn find(site: &Site, name: &str) -> Result<ImageName, Failure> {
    let known = known(site)?;
    let found = known.iter().find(|listed| listed.name.as_str() == name).map(|listed| listed.name.clone());
    found.ok_or_else(|| {
        let hint = suggest(name, known.iter().map(|listed| listed.name.as_str()));
        Failure::new(format!("there is no image `{name}` in {}", site.images_dir.display()), hint)
    })
}

fn build(site: &Site, name: &str) -> Result<(), Failure> {
    let mut names: Vec<ImageName> = match name {
        "all" => site.profiles.values().map(|profile| profile.image.clone()).collect(),
        name => vec![find(site, name)?],
    };
    names.sort_unstable();
    names.dedup();
    for name in names {
        let request = BuildRequest {
            recipe_dir: site.images_dir.join(name.as_str()),
            blobs_dir: site.blobs_dir.clone(),
            keys_dir: site.state_dir.join("keys"),
            // Beside the blobs: sites that share those share downloads too.
            cache_dir: site.blobs_dir.join("cache"),
            work_dir: site.blobs_dir.join("work"),
            name,
        };
        let built = image::build(&request, &Drawing::new()).map_err(|error| match error {
            BuildError::Recipe(faults) => faults.into(),
            error => Failure::of(&error),
        })?;
        let (name, total) = (&request.name, bytes(size(&built)));
        write(&format!("{name}: kernel {}, {total}, built {}\n", built.kernel_release, built.built_at))?;
    }
    Ok(())
}

fn verify(site: &Site, name: &str) -> Result<(), Failure> {
    let names = match name {
        "all" => known(site)?.into_iter().map(|listed| listed.name).collect(),
        name => vec![find(site, name)?],
    };
    let (mut sound, mut bad) = (0, Vec::new());
    for image in names {
        match image::verify(&site.blobs_dir, &image) {
            Ok(manifest) => {
                sound += 1;
                write(&format!("{image}: every blob has its digest ({})\n", bytes(size(&manifest))))?;
            }
            // Of all images, one that is not built has nothing to verify.
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
