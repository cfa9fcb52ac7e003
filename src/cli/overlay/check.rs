//! `meshd overlay check`: validates overlays, alone and in combination with profiles and images.

use super::render::{Renderer, reading};
use crate::cli::{
    Context, Failure,
    output::print::{Output, table},
};
use clap::Args;
use meshd_config::{Fault, Faults, Group, Profile, Site};
use meshd_image::catalog::{
    Overlay, Overlays,
    image::{Contents, ImageManifest, load_manifest},
    overlay::{Layer, Reading, System},
};
use meshd_types::{ImageName, NodeId, OverlayName, SafePath};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Maximum time to read and render the overlays of a site.
const READ_DEADLINE: Duration = Duration::from_secs(120);
/// Stack of the thread that renders, in bytes.
const STACK: usize = 64 << 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct CheckOverlays {
    #[command(flatten)]
    output: Output,
}

/// An overlay without faults, with its profiles and images.
#[derive(Debug, Serialize)]
struct Sound {
    overlay: String,
    /// Systems that it supports and renders for.
    systems: Vec<&'static str>,
    /// Profiles that use the overlay.
    profiles: Vec<String>,
    /// Built images, each with the packages, services and modules that it lacks.
    images: BTreeMap<ImageName, Vec<String>>,
}

impl CheckOverlays {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        let found = faults(&site);
        if !found.is_empty() {
            return Err(Faults(found).into());
        }
        let images = built_images(&site);
        let sound: Vec<Sound> =
            reading(&site).overlays.all().map(|overlay| sound(&site, overlay, &images)).collect();
        self.output.print(&sound, |sound| {
            table(
                ["overlay", "systems", "profiles", "images"],
                sound.iter().map(|one| {
                    let systems = one.systems.join(" ");
                    [one.overlay.clone(), systems, one.profiles.join(" "), carriers(&one.images)]
                }),
            )
        })?;
        for warning in super::warnings(&site) {
            message!("warning: {warning}");
        }
        message!("every profile's overlays render");
        Ok(())
    }
}

fn sound(site: &Site, overlay: &Overlay, images: &[ImageManifest]) -> Sound {
    let uses = |profile: &&Profile| {
        profile.overlays.iter().any(|name| Layer::Named(name.clone()) == overlay.name)
    };
    Sound {
        overlay: overlay.name.to_string(),
        systems: overlay.systems.iter().map(|system| system.as_str()).collect(),
        profiles: site
            .profiles
            .values()
            .filter(uses)
            .map(|profile| profile.name.to_string())
            .collect(),
        images: missing_contents(overlay, images),
    }
}

/// Formats images, such as `alpine-lab` or `alpine-lab (lacks k3s)`.
pub(super) fn carriers(images: &BTreeMap<ImageName, Vec<String>>) -> String {
    let one = |(image, lacks): (&ImageName, &Vec<String>)| match lacks.as_slice() {
        [] => image.to_string(),
        lacks => format!("{image} (lacks {})", lacks.join(" ")),
    };
    images.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the packages, services and modules of an overlay that each image lacks.
pub(super) fn missing_contents(
    overlay: &Overlay,
    images: &[ImageManifest],
) -> BTreeMap<ImageName, Vec<String>> {
    let own: BTreeSet<String> = overlay.entries.keys().filter_map(service_at).collect();
    let fits = |image: &&ImageManifest| overlay.systems.contains(&image.parts.system());
    let images = images.iter().filter(fits);
    images.map(|image| (image.name.clone(), lacks(overlay, image, &own))).collect()
}

fn lacks(overlay: &Overlay, image: &ImageManifest, brought: &BTreeSet<String>) -> Vec<String> {
    let Contents { services, modules } = &image.contents;
    let system = image.parts.system();
    // A root with rpm has no package list.
    let has_list = system == System::Alpine || !image.packages.is_empty();
    let packages = overlay
        .packages_for(system)
        .iter()
        .filter(|package| has_list && !image.packages.contains_key(*package))
        .cloned();
    let lacks_service =
        |name: &&str| !services.is_empty() && !services.contains(*name) && !brought.contains(*name);
    let enabled: Vec<&str> = match system {
        System::Alpine => overlay.services.enabled.keys().map(String::as_str).collect(),
        System::Systemd => {
            overlay.units.enabled.keys().filter_map(|unit| unit.strip_suffix(".service")).collect()
        }
    };
    let absent = enabled.into_iter().filter(lacks_service).map(|name| format!("service {name}"));
    let lacks_module =
        |name: &&String| !modules.is_empty() && !modules.contains(&name.replace('-', "_"));
    let unknown = overlay.modules.iter().filter(lacks_module).map(|name| format!("module {name}"));
    packages.chain(absent).chain(unknown).collect()
}

/// Returns the name of the service if the path is that of a service script or unit.
fn service_at(path: &SafePath) -> Option<String> {
    let relative = path.relative();
    let unit = || relative.strip_prefix("etc/systemd/system/")?.strip_suffix(".service");
    relative.strip_prefix("etc/init.d/").or_else(unit).map(str::to_owned)
}

/// Returns the built images that have a recipe or that profiles use.
pub(super) fn built_images(site: &Site) -> Vec<ImageManifest> {
    let recipes = std::fs::read_dir(&site.images_dir).into_iter().flatten().flatten();
    let recipes = recipes.filter_map(|entry| entry.file_name().to_str()?.parse::<ImageName>().ok());
    let names: BTreeSet<ImageName> =
        site.profiles.values().map(|profile| profile.image.clone()).chain(recipes).collect();
    names.iter().filter_map(|name| load_manifest(&site.blobs_dir, name).ok()).collect()
}

/// Returns all faults of the overlays of a site, including those of the combinations in profiles. A
/// reload has the same deadline.
pub(in crate::cli) fn faults(site: &Site) -> Vec<Fault> {
    let own = site.clone();
    run_with_deadline(READ_DEADLINE, move || find_faults(&own)).unwrap_or_else(|| {
        let what = format!("reading and rendering took more than {} s", READ_DEADLINE.as_secs());
        let hint = "check that its disk answers, and that no template loops over many values";
        vec![Fault::of_file(&site.overlays_dir, what, hint)]
    })
}

/// Runs a function on a thread of its own, which a deadline leaves behind: nothing can end it.
/// `None` after the deadline.
fn run_with_deadline<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().stack_size(STACK);
    let started = thread.spawn(move || {
        // Nobody receives the result after the deadline.
        let _ = sender.send(work());
    });
    let started = started.expect("a command may start a thread");
    match receiver.recv_timeout(deadline) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => match started.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => None,
        },
    }
}

fn find_faults(site: &Site) -> Vec<Fault> {
    let Reading { overlays, broken, mut faults } = reading(site);
    let images: BTreeMap<ImageName, ImageManifest> =
        built_images(site).into_iter().map(|image| (image.name.clone(), image)).collect();
    faults.extend(no_such_overlay(site, &overlays, &broken));
    let mut renderer = Renderer::new(site, overlays);
    for profile in site.profiles.values() {
        // The content of a faulty overlay is unknown, and its faults are already in the list.
        let known = |name| renderer.overlays.named.contains_key(name);
        if !profile.overlays.iter().all(known) {
            continue;
        }
        let found = renderer.render(profile, None).err().map(|faults| faults.0).unwrap_or_default();
        let missing = images
            .get(&profile.image)
            .map(|image| missing_packages(site, profile, &renderer.overlays, image));
        for fault in found.into_iter().chain(missing.into_iter().flatten()) {
            // A faulty template that two profiles share is one fault.
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
    }
    for fault in of_nodes(site, &mut renderer, &broken) {
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    faults
}

fn no_such_overlay(site: &Site, overlays: &Overlays, broken: &BTreeSet<Layer>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for profile in site.profiles.values() {
        for name in &profile.overlays {
            if !overlays.named.contains_key(name) && !broken.contains(&Layer::Named(name.clone())) {
                let hint = meshd_config::suggest(
                    name.as_str(),
                    overlays.named.keys().map(|name| name.as_str()),
                );
                let what = format!("profile {}: there is no overlay `{name}`", profile.name);
                faults.push(Fault::of_file(&site.file, what, hint));
            }
        }
    }
    faults
}

/// Returns the packages, services and modules that a profile requires and its image lacks. Without
/// a package, a node refuses to boot. Without a service or module, a node does not become ready.
fn missing_packages(
    site: &Site,
    profile: &Profile,
    overlays: &Overlays,
    image: &ImageManifest,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let hint = format!(
        "add it to images/{}/image.toml and build the image anew, or use another image",
        image.name
    );
    let layers: Vec<&Overlay> =
        profile.overlays.iter().filter_map(|name| overlays.named.get(name)).collect();
    let brought: BTreeSet<String> =
        layers.iter().flat_map(|overlay| overlay.entries.keys()).filter_map(service_at).collect();
    for overlay in layers {
        for what in lacks(overlay, image, &brought) {
            let what = if what.contains(' ') { what } else { format!("package {what}") };
            let what = format!("image {} of profile {} has no {what}", image.name, profile.name);
            faults.push(Fault::of_file(overlay.folder.join("overlay.toml"), what, &hint));
        }
    }
    let has_list = image.parts.system() == System::Alpine || !image.packages.is_empty();
    let is_absent = |package: &&String| has_list && !image.packages.contains_key(*package);
    for package in profile.packages.iter().filter(is_absent) {
        let what =
            format!("profile {}: image {} has no package {package}", profile.name, image.name);
        faults.push(Fault::of_file(&site.file, what, &hint));
    }
    faults
}

/// Returns faults if an image version lacks packages, services or modules of a profile that boots
/// it.
pub(in crate::cli) fn fits_profiles(site: &Site, image: &ImageManifest) -> Result<(), Faults> {
    let overlays = reading(site).overlays;
    let profiles = site.profiles.values().filter(|profile| profile.image == image.name);
    let faults: Vec<Fault> =
        profiles.flat_map(|profile| missing_packages(site, profile, &overlays, image)).collect();
    if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
}

/// Checks that overlays of groups and single nodes fit a profile. Only the central node knows the
/// overlays of each node.
fn of_nodes(site: &Site, renderer: &mut Renderer<'_>, broken: &BTreeSet<Layer>) -> Vec<Fault> {
    let known = |name: &&OverlayName| !broken.contains(&Layer::Named((*name).clone()));
    let whole = |group: &&Group| group.overlays.iter().all(|name| known(&name));
    let members = site.groups.iter().filter(whole).filter_map(|group| group.nodes.first().copied());
    let nodes: BTreeSet<NodeId> = renderer.overlays.nodes.keys().copied().chain(members).collect();
    let profiles: Vec<&Profile> = site
        .profiles
        .values()
        .filter(|profile| profile.overlays.iter().all(|name| known(&name)))
        .collect();
    let mut faults = Vec::new();
    for node in nodes {
        let mut first = None;
        for profile in &profiles {
            match renderer.render(profile, Some(node)) {
                Ok(_) => {
                    first = None;
                    break;
                }
                Err(found) => first = first.or(Some(found)),
            }
        }
        faults.extend(first.into_iter().flat_map(|found| found.0));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_its_deadline_is_left() {
        let (release, wait) = mpsc::channel::<()>();
        assert_eq!(run_with_deadline(Duration::ZERO, move || wait.recv().is_err()), None);
        drop(release);
        assert_eq!(run_with_deadline(READ_DEADLINE, || 7), Some(7));
    }
}
