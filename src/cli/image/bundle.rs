//! `meshd bundle`: builds and lists bundles. All commands work on files and need no running meshd.

use super::{begin_build, build_failure, unreadable, versions::Prune};
use crate::cli::{
    Context, Failure,
    output::{
        list::ListOutput,
        print::{bytes, table, write},
        progress::Drawing,
    },
};
use clap::Subcommand;
use meshd_builder::{
    ArtifactKind, BundleRequest, ImageState, ListedBundle, build_bundle, list_bundles, recipes_dir,
};
use meshd_config::{Site, suggest};
use meshd_image::catalog::versions::{CACHE, WORK};
use meshd_types::{BundleName, ProfileName};
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum Bundle {
    /// List bundles with their builds
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Build a bundle from its recipe
    Build {
        /// Bundle, or `all` that profiles use
        #[arg(default_value = "all")]
        name: String,
    },
    /// Delete old layers and unused blobs
    ///
    /// Current, previous and used versions stay. The lists in blobs_dir/in-use/ name what is used.
    Prune(Prune),
}

impl Bundle {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        match self {
            Bundle::List { output } => output.print(&views(&site)?, |views| list(views)),
            Bundle::Build { name } => build(&site, &name),
            Bundle::Prune(prune) => {
                let name = prune.name.as_deref().map(|name| find(&site, name)).transpose()?;
                prune.run(&site, ArtifactKind::Bundles, name.map(|name| name.to_string()))
            }
        }
    }
}

/// An entry in the list of bundles.
#[derive(Debug, Serialize)]
struct BundleView {
    #[serde(flatten)]
    bundle: ListedBundle,
    /// Profiles that use the bundle.
    profiles: Vec<ProfileName>,
}

fn views(site: &Site) -> Result<Vec<BundleView>, Failure> {
    let read = list_bundles(&site.blobs_dir, &site.images_dir)
        .map_err(|error| unreadable(site, &error))?;
    let view = |bundle: ListedBundle| {
        let uses = site.profiles.values().filter(|profile| profile.bundles.contains(&bundle.name));
        BundleView { profiles: uses.map(|profile| profile.name.clone()).collect(), bundle }
    };
    Ok(read.into_iter().map(view).collect())
}

fn list(views: &[BundleView]) -> String {
    let rows = views.iter().map(|BundleView { bundle, profiles }| {
        let state = match bundle.state {
            ImageState::Built => "built",
            ImageState::Stale => "stale: the recipe has changed",
            ImageState::NotBuilt => "not built",
            ImageState::Broken => "broken",
            ImageState::NoRecipe => "built, without recipe",
        };
        let manifest = bundle.manifest.as_ref();
        let profiles: Vec<&str> = profiles.iter().map(ProfileName::as_str).collect();
        [
            bundle.name.to_string(),
            manifest.map(|one| one.layer.digest.short()).unwrap_or_default(),
            state.to_owned(),
            manifest.map(|one| bytes(one.layer.size)).unwrap_or_default(),
            manifest.map(|one| one.programs.join(" ")).unwrap_or_default(),
            manifest.map(|one| one.built_at.to_string()).unwrap_or_default(),
            profiles.join(" "),
        ]
    });
    table(["name", "version", "state", "size", "programs", "built at", "profiles"], rows)
}

/// Finds a bundle by name.
fn find(site: &Site, name: &str) -> Result<BundleName, Failure> {
    let known = views(site)?;
    let found = known.iter().find(|view| view.bundle.name.as_str() == name);
    let hint = || suggest(name, known.iter().map(|view| view.bundle.name.as_str()));
    let place = recipes_dir(&site.images_dir);
    let absent =
        || Failure::new(format!("there is no bundle `{name}` in {}", place.display()), hint());
    Ok(found.ok_or_else(absent)?.bundle.name.clone())
}

fn build(site: &Site, name: &str) -> Result<(), Failure> {
    let used = |view: &BundleView| !view.profiles.is_empty();
    let names: Vec<BundleName> = match name {
        "all" => views(site)?.into_iter().filter(used).map(|view| view.bundle.name).collect(),
        name => vec![find(site, name)?],
    };
    begin_build()?;
    for name in names {
        let request = BundleRequest {
            recipe_dir: recipes_dir(&site.images_dir).join(name.as_str()),
            blobs_dir: site.blobs_dir.clone(),
            cache_dir: site.blobs_dir.join(CACHE),
            work_dir: site.blobs_dir.join(WORK),
            name,
        };
        let built = build_bundle(&request, &Drawing::new()).map_err(build_failure)?;
        let name = &built.name;
        let layer = built.layer;
        let programs = built.programs.join(" ");
        write(&format!(
            "{name}: version {}, {}, {programs}\n",
            layer.digest.short(),
            bytes(layer.size)
        ))?;
    }
    Ok(())
}
