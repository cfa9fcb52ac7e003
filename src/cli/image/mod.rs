//! `meshd image`: builds, imports, lists and verifies images. All commands work on files and need
//! no running meshd; with `--server`, `list` uses the API.
//!
//! | module | content |
//! | --- | --- |
//! | `bundle` | `meshd bundle`: builds and lists bundles |
//! | `versions` | `meshd image promote/rollback/prune` and `meshd bundle prune`: versions of images and bundles |

pub(crate) mod bundle;
pub(crate) mod versions;

use super::{
    Context, Failure,
    lab::signals::on_first_end_signal,
    output::{
        list::ListOutput,
        print::{bytes, now, table, write},
        progress::Drawing,
    },
    wait,
};
use clap::Subcommand;
use meshd_api::{ImageView, routes as api};
use meshd_builder::{
    ArtifactKind, BuildError, BuildRequest, ContainerImport, ContainerSource, ImportRequest,
    Version,
    import::recipe::{is_import, is_url},
};
use meshd_config::{Site, suggest};
use meshd_image::catalog::{
    ImageError, ImageManifest,
    versions::{CACHE, WORK},
};
use meshd_types::{Architecture, ImageName, ProfileName};
use std::path::PathBuf;
use versions::Prune;

#[derive(Debug, Subcommand)]
pub(super) enum Image {
    /// List images with their builds and versions
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Build an image from its recipe
    Build {
        /// Image, or `all` that profiles use
        #[arg(default_value = "all")]
        name: String,
        /// Keep the current version in use
        #[arg(long)]
        no_promote: bool,
        /// Build again for newer packages of the same recipe
        #[arg(long)]
        refresh: bool,
    },
    /// Import and verify Alpine's netboot files and packages
    Import {
        /// Image
        name: String,
        /// Folder with the files, instead of a mirror
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Mirror, instead of the recipe's
        #[arg(long, value_name = "URL", conflicts_with = "from")]
        mirror: Option<String>,
        /// Accept the mirror's own digest of an unpinned bundle
        #[arg(long, conflicts_with = "from")]
        trust_mirror: bool,
        /// Keep the current version in use
        #[arg(long)]
        no_promote: bool,
        /// Import an OCI image for containers, as volume NAME
        #[arg(long, value_name = "oci:DIR|oci-archive:FILE|docker://REF", conflicts_with_all = ["from", "mirror", "trust_mirror", "no_promote"])]
        container: Option<ContainerSource>,
        /// Architecture of the OCI image [default: this machine's]
        #[arg(long, requires = "container")]
        arch: Option<Architecture>,
    },
    /// Make a version the current one, from the next boot on
    Promote {
        /// Image
        name: String,
        /// Version or prefix, as in `image list`
        // clap reserves the ID `version` for --version.
        #[arg(id = "which", value_name = "VERSION")]
        version: String,
    },
    /// Make the previous version the current one
    Rollback {
        /// Image
        name: String,
    },
    /// Delete old versions and unused blobs
    ///
    /// Current, previous and used versions stay. The lists in blobs_dir/in-use/ name what is used.
    Prune(Prune),
    /// Verify every blob of an image
    Verify {
        /// Image, or `all` that are built
        #[arg(default_value = "all")]
        name: String,
    },
}

impl Image {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        if let (Image::List { output }, true) = (&self, context.is_remote()) {
            let client = context.client()?;
            let all = wait(client.get(api::LIST_IMAGES.path([])))?;
            return output.print(&all, |all| list(all));
        }
        let site = context.site()?;
        match self {
            Image::List { output } => output.print(&local_images(&site)?, |all| list(all)),
            Image::Build { name, no_promote, refresh } => build(&site, &name, !no_promote, refresh),
            Image::Import { name, container: Some(source), arch, .. } => {
                import_container_image(&site, &name, source, arch)
            }
            Image::Import { name, from, mirror, trust_mirror, no_promote, .. } => {
                import(&site, &name, from, mirror, trust_mirror, !no_promote)
            }
            Image::Promote { name, version } => {
                versions::promote(&site, &find(&site, &name)?, &version)
            }
            Image::Rollback { name } => versions::rollback(&site, &find(&site, &name)?),
            Image::Prune(prune) => {
                let name = prune.name.as_deref().map(|name| find(&site, name)).transpose()?;
                prune.run(&site, ArtifactKind::Images, name.map(|name| name.to_string()))
            }
            Image::Verify { name } => verify(&site, &name),
        }
    }
}

/// Returns all images of the site on this machine.
fn local_images(site: &Site) -> Result<Vec<ImageView>, Failure> {
    ImageView::all(site).map_err(|error| unreadable(site, &error))
}

fn unreadable(site: &Site, error: &dyn std::fmt::Display) -> Failure {
    let folders = format!("{} or {}", site.images_dir.display(), site.blobs_dir.display());
    Failure::new(
        format!("cannot read {folders}: {error}"),
        "check [site].images_dir and [site].blobs_dir",
    )
}

fn list(views: &[ImageView]) -> String {
    let rows = views.iter().flat_map(|view| {
        let name = &view.image.name;
        let profiles: Vec<&str> = view.profiles.iter().map(ProfileName::as_str).collect();
        let first = row(name, view.state().to_owned(), view.manifest(), &profiles.join(" "));
        let others =
            view.others().map(|other| row(name, status_words(other), Some(&other.manifest), ""));
        std::iter::once(first).chain(others).collect::<Vec<_>>()
    });
    table(["name", "version", "state", "release", "kernel", "size", "built at", "profiles"], rows)
}

/// Returns the state of a version that is not the current one.
fn status_words(version: &Version) -> String {
    let words = [(version.previous, "before it"), (version.in_use, "in use")];
    let words: Vec<&str> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    if words.is_empty() { "kept".to_owned() } else { words.join(", ") }
}

fn row(
    name: &ImageName,
    state: String,
    manifest: Option<&ImageManifest>,
    profiles: &str,
) -> [String; 8] {
    let of = |show: fn(&ImageManifest) -> String| manifest.map(show).unwrap_or_default();
    [
        name.to_string(),
        of(|one| one.version().short()),
        state,
        of(|one| one.os_release.clone()),
        of(|one| one.kernel_release.clone()),
        of(|one| bytes(one.size())),
        of(|one| one.built_at.to_string()),
        profiles.to_owned(),
    ]
}

/// Finds an image by name.
pub(super) fn find(site: &Site, name: &str) -> Result<ImageName, Failure> {
    let known = local_images(site)?;
    let found =
        known.iter().map(|view| &view.image.name).find(|known| known.as_str() == name).cloned();
    found.ok_or_else(|| {
        let hint = suggest(name, known.iter().map(|view| view.image.name.as_str()));
        Failure::new(format!("there is no image `{name}` in {}", site.images_dir.display()), hint)
    })
}

/// Prepares a build: the first signal to end removes its files. Programs of a build copy the modes
/// of what they unpack, so the umask of the user must not change them.
fn begin_build() -> Result<(), Failure> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(on_first_end_signal(meshd_builder::interrupt)?)
}

fn build(site: &Site, name: &str, promote: bool, refresh: bool) -> Result<(), Failure> {
    let mut names: Vec<ImageName> = match name {
        "all" => site.profiles.values().map(|profile| profile.image.clone()).collect(),
        name => vec![find(site, name)?],
    };
    names.sort_unstable();
    names.dedup();
    begin_build()?;
    for name in names {
        let request = BuildRequest { refresh, ..request(site, name, promote) };
        print_outcome(meshd_builder::build(&request, &Drawing::new()))?;
    }
    Ok(())
}

fn request(site: &Site, name: ImageName, promote: bool) -> BuildRequest {
    BuildRequest {
        recipe_dir: site.images_dir.join(name.as_str()),
        blobs_dir: site.blobs_dir.clone(),
        keys_dir: site.state_dir.join("keys"),
        cache_dir: site.blobs_dir.join(CACHE),
        work_dir: site.blobs_dir.join(WORK),
        name,
        promote,
        refresh: false,
    }
}

/// Returns the failure of a build. That of an interrupted one is the interrupt, not what it caused.
fn build_failure(error: BuildError) -> Failure {
    match error {
        _ if meshd_builder::is_interrupted() => Failure::new("interrupted", ""),
        BuildError::Recipe(faults) => faults.into(),
        error => Failure::of(&error),
    }
}

/// Prints the result of a build or import.
fn print_outcome(outcome: Result<ImageManifest, BuildError>) -> Result<(), Failure> {
    let built = outcome.map_err(build_failure)?;
    let name = &built.name;
    let version = built.version().short();
    let total = bytes(built.size());
    write(&format!(
        "{name}: version {version}, kernel {}, {total}, built {}\n",
        built.kernel_release, built.built_at
    ))
}

fn import(
    site: &Site,
    name: &str,
    from: Option<PathBuf>,
    mirror: Option<String>,
    trust_mirror: bool,
    promote: bool,
) -> Result<(), Failure> {
    if let Some(url) = mirror.as_ref().filter(|url| !is_url(url)) {
        return Err(Failure::new(
            format!("`{url}` is no URL"),
            "write --mirror https://mirror.example.org/alpine",
        ));
    }
    // A folder may contain an image that has no recipe.
    let name = if from.is_some() {
        name.parse().map_err(|error| Failure::of(&error))?
    } else {
        find(site, name)?
    };
    let recipe_dir = site.images_dir.join(name.as_str());
    if recipe_dir.exists() && !is_import(&recipe_dir) {
        let hint = format!("build it: meshd image build {name}; or import under another name");
        return Err(Failure::new(
            format!("the recipe of image `{name}` has no section [mirror]"),
            hint,
        ));
    }
    let request = ImportRequest { build: request(site, name, promote), from, mirror, trust_mirror };
    begin_build()?;
    print_outcome(meshd_builder::import(&request, &Drawing::new()))
}

/// Imports an OCI image as a volume, and prints its digest.
fn import_container_image(
    site: &Site,
    name: &str,
    source: ContainerSource,
    arch: Option<Architecture>,
) -> Result<(), Failure> {
    let arch = match arch {
        Some(arch) => arch,
        None => std::env::consts::ARCH
            .parse()
            .map_err(|error| Failure::new(format!("{error}"), "name it with --arch"))?,
    };
    let import = ContainerImport {
        name: name.parse().map_err(|error| Failure::of(&error))?,
        source,
        arch,
        blobs_dir: site.blobs_dir.clone(),
        work_dir: site.blobs_dir.join(WORK),
        now: now(),
    };
    begin_build()?;
    let imported = meshd_builder::import_container(&import, &Drawing::new());
    let volume = imported.map_err(|error| match error {
        _ if meshd_builder::is_interrupted() => Failure::new("interrupted", ""),
        error => Failure::of(&error),
    })?;
    write(&format!("{}: {}, {}\n", volume.name, bytes(volume.size), volume.digest))
}

fn verify(site: &Site, name: &str) -> Result<(), Failure> {
    let names = match name {
        "all" => local_images(site)?.into_iter().map(|view| view.image.name).collect(),
        name => vec![find(site, name)?],
    };
    let mut sound = 0;
    let mut bad = Vec::new();
    for image in names {
        match meshd_builder::verify(&site.blobs_dir, &image) {
            Ok(manifest) => {
                sound += 1;
                write(&format!(
                    "{image}: every blob has its digest ({})\n",
                    bytes(manifest.size())
                ))?;
            }
            // `all` skips images that are not built.
            Err(ImageError::NotBuilt { .. }) if name == "all" => {}
            Err(error) => bad.push(Failure::of(&error)),
        }
    }
    if bad.is_empty() && sound == 0 {
        return Err(Failure::new("no image is built", "build them: meshd image build all"));
    }
    let last = bad.pop();
    for failure in &bad {
        message!("{failure}");
    }
    last.map_or(Ok(()), Err)
}
