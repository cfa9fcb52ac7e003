//! Merges overlay layers in order; the last layer wins.
//!
//! Order: the overlays of the profile, parents' first; those of the node's groups in listed order;
//! the node's own. A repeated overlay moves to the later position.

use super::{GroupContext, NodeContext, RenderInput};
use crate::catalog::{
    ImageManifest,
    overlay::{
        Overlay, OverlayEntry, Overlays, Runlevel, Source, SourceLocation, System, is_plain_name,
    },
};
use bytes::Bytes;
use meshd_config::{Fault, Profile, suggest};
use meshd_types::{Digest, OverlayName, SafePath};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

/// Result of merging all layers.
#[derive(Default)]
pub(super) struct Merged<'a> {
    /// Layers in the order of application.
    pub(super) layers: Vec<&'a Overlay>,
    /// Pieces of each path: one entry, and entries that append to it.
    pub(super) paths: BTreeMap<&'a SafePath, Vec<Piece<'a>>>,
    /// Services of OpenRC.
    pub(super) services: BTreeMap<&'a str, Enabled>,
    /// Units of systemd, each with the layers that enable it.
    pub(super) units: BTreeMap<&'a str, Vec<usize>>,
    /// Units of systemd that never start, each with the layers that mask it.
    pub(super) masked: BTreeMap<&'a str, Vec<usize>>,
    pub(super) packages: BTreeSet<&'a str>,
    pub(super) modules: Vec<&'a str>,
    pub(super) sysctl: BTreeMap<&'a str, &'a str>,
}

/// An entry with the index of its layer.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) layer: usize,
    pub(super) entry: &'a OverlayEntry,
}

/// Joins two texts; the second begins on a new line.
pub(super) fn joined(before: &[u8], text: &[u8]) -> Bytes {
    let gap: &[u8] = if before.is_empty() || before.ends_with(b"\n") { b"" } else { b"\n" };
    [before, gap, text].concat().into()
}

/// A service to start, with the layers that enable it.
pub(super) struct Enabled {
    pub(super) level: Runlevel,
    pub(super) layers: Vec<usize>,
}

/// Merges all layers of a node.
pub(super) fn merge<'a>(input: &RenderInput<'a>, faults: &mut Vec<Fault>) -> Merged<'a> {
    let system = input.image.system;
    let mut merged = Merged { layers: layers(input, faults), ..Merged::default() };
    for number in 0..merged.layers.len() {
        let overlay = merged.layers[number];
        merged.remove(number, system == System::Alpine, faults);
        for (path, entry) in overlay.entries_for(system) {
            merged.entry(number, path, entry, faults);
        }
        match system {
            System::Alpine => merged.enable(number, faults),
            System::Systemd => merged.enable_units(number),
        }
        merged.packages.extend(overlay.packages_for(system).iter().map(String::as_str));
        for module in overlay.modules.iter().map(String::as_str) {
            if !merged.modules.contains(&module) {
                merged.modules.push(module);
            }
        }
        merged
            .sysctl
            .extend(overlay.sysctl.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    }
    merged.conflicting_services(faults);
    merged.same_but_for_case(faults);
    for package in &input.profile.packages {
        if is_plain_name(package) {
            merged.packages.insert(package);
        } else {
            let what = format!("profile {}: `{package}` is not a package name", input.profile.name);
            faults.push(Fault::of_file(
                &input.site.file,
                what,
                "write it without version or repository",
            ));
        }
    }
    merged
}

/// Returns the packages that the node needs and its image does not contain; mesh-init would refuse
/// to boot without them. Empty for an image without a package list.
pub fn missing_packages(input: &RenderInput<'_>, image: &ImageManifest) -> Vec<Fault> {
    if image.packages.is_empty() {
        return Vec::new();
    }
    let merged = merge(input, &mut Vec::new());
    let absent = merged.packages.iter().filter(|package| !image.packages.contains_key(**package));
    let hint = format!(
        "add it to images/{}/image.toml and build the image, or use another image",
        image.name
    );
    let fault = |package: &&str| {
        let system = input.image.system;
        let brings = |overlay: &&&Overlay| overlay.packages_for(system).contains(*package);
        let owner = merged.layers.iter().find(brings);
        let file = owner
            .map_or_else(|| input.site.file.clone(), |overlay| overlay.folder.join("overlay.toml"));
        let what = format!(
            "profile {}: image {} has no package {package}",
            input.profile.name, image.name
        );
        Fault::of_file(file, what, &hint)
    };
    absent.map(fault).collect()
}

/// Reference to an overlay.
enum NamedBy<'a> {
    Profile(&'a Profile),
    Group(&'a GroupContext),
}

impl Display for NamedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedBy::Profile(profile) => write!(f, "profile {}", profile.name),
            NamedBy::Group(group) => write!(f, "group {}", group.name),
        }
    }
}

/// Returns the overlays of profile and groups in the order of application; a repeated one moves to
/// the later position.
fn overlays_with_origin<'a>(
    profile: &'a Profile,
    node: &'a NodeContext,
) -> Vec<(&'a OverlayName, NamedBy<'a>)> {
    let mut names: Vec<(&OverlayName, NamedBy<'a>)> = Vec::new();
    let of_profile = profile.overlays.iter().map(|name| (name, NamedBy::Profile(profile)));
    let of_groups = node
        .groups
        .iter()
        .flat_map(|group| group.overlays.iter().map(move |name| (name, NamedBy::Group(group))));
    for (name, named_by) in of_profile.chain(of_groups) {
        names.retain(|(earlier, _)| *earlier != name);
        names.push((name, named_by));
    }
    names
}

/// Returns a digest over all overlay inputs of a node: its overlays in order and the marks of the
/// secrets that they declare. Edits of other overlays do not change it.
pub fn used_digest(profile: &Profile, node: &NodeContext, overlays: &Overlays) -> Digest {
    let taken = overlays_with_origin(profile, node);
    let own = overlays.nodes.get(&node.id);
    let mut fields: Vec<&[u8]> = Vec::new();
    let mut marks = BTreeMap::new();
    let layers = taken.iter().map(|(name, _)| (name.as_str(), overlays.named.get(*name)));
    for (name, overlay) in layers.chain(own.map(|own| ("", Some(own)))) {
        // A missing overlay changes the digest too, because the rendering reports it as a fault.
        fields.extend([
            name.as_bytes(),
            overlay.map_or(&[][..], |overlay| overlay.digest.0.as_slice()),
        ]);
        let declared = overlay.iter().flat_map(|overlay| &overlay.variables);
        let secrets = declared.filter(|(_, variable)| variable.secret).map(|(name, _)| name);
        marks.extend(secrets.filter_map(|name| Some((name, overlays.secret_marks.get(name)?))));
    }
    fields.push(b"secrets");
    fields.extend(
        marks.iter().flat_map(|(name, mark)| [name.as_str().as_bytes(), mark.0.as_slice()]),
    );
    Digest::of_fields(fields)
}

fn layers<'a>(input: &RenderInput<'a>, faults: &mut Vec<Fault>) -> Vec<&'a Overlay> {
    let mut layers = Vec::new();
    for (name, named_by) in overlays_with_origin(input.profile, input.node) {
        match input.overlays.named.get(name) {
            Some(overlay) => layers.push(overlay),
            None => {
                let hint =
                    suggest(name.as_str(), input.overlays.named.keys().map(OverlayName::as_str));
                let what = format!("{named_by}: there is no overlay `{name}`");
                faults.push(Fault::of_file(&input.site.file, what, hint));
            }
        }
    }
    layers.extend(input.overlays.nodes.get(&input.node.id));
    let system = input.image.system;
    for overlay in layers.iter().filter(|overlay| !overlay.systems.contains(&system)) {
        let location = SourceLocation { file: "overlay.toml".into(), line: 0 };
        let what = format!(
            "profile {}: overlay {} does not support {system}, the system of image {}",
            input.profile.name, overlay.name, input.image.name
        );
        let hint = format!(
            "take it out of the profile; or adapt its files and services, and add \"{system}\" to `systems`"
        );
        faults.push(fault(overlay, &location, what, hint));
    }
    layers
}

/// Creates a fault of one overlay.
pub(super) fn fault(
    overlay: &Overlay,
    location: &SourceLocation,
    what: String,
    hint: impl Into<String>,
) -> Fault {
    Fault { line: location.line, ..Fault::of_file(overlay.folder.join(&location.file), what, hint) }
}

fn in_manifest(overlay: &Overlay, line: usize, what: String, hint: impl Into<String>) -> Fault {
    fault(overlay, &SourceLocation { file: "overlay.toml".into(), line }, what, hint)
}

/// Describes kind, mode and owner of an entry.
fn describe_entry(entry: &OverlayEntry) -> String {
    let (user, group) = entry.owner;
    let kind = match entry.source {
        Source::Link(_) => return "a link".to_owned(),
        Source::Directory => "a folder",
        _ => "a file",
    };
    format!("{kind} {:04o} {user}:{group}", entry.mode)
}

impl<'a> Merged<'a> {
    fn name(&self, number: usize) -> &dyn Display {
        &self.layers[number].name
    }

    fn remove(&mut self, number: usize, has_runlevels: bool, faults: &mut Vec<Fault>) {
        let overlay = self.layers[number];
        for (removed, line) in &overlay.removed {
            let before = self.paths.len();
            self.paths.retain(|path, _| {
                *path != removed && !path.parents().any(|parent| parent == removed.relative())
            });
            let is_of_another_system = || {
                let mut earlier = self.layers[..number].iter();
                earlier.any(|overlay| overlay.entries.contains_key(removed))
            };
            if self.paths.len() == before && !is_of_another_system() {
                let what =
                    format!("removes {removed}, which no overlay before {} brings", overlay.name);
                faults.push(in_manifest(
                    overlay,
                    *line,
                    what,
                    "take it out; what packages bring cannot be removed",
                ));
            }
        }
        for (service, line) in overlay.services.removed.iter().filter(|_| has_runlevels) {
            if self.services.remove(service.as_str()).is_none() {
                let what = format!(
                    "removes service `{service}`, which no overlay before {} enables",
                    overlay.name
                );
                faults.push(in_manifest(
                    overlay,
                    *line,
                    what,
                    "take it out, or put the overlay later",
                ));
            }
        }
    }

    fn entry(
        &mut self,
        number: usize,
        path: &'a SafePath,
        entry: &'a OverlayEntry,
        faults: &mut Vec<Fault>,
    ) {
        let overlay = self.layers[number];
        let piece = Piece { layer: number, entry };
        let earlier = self.paths.get(path).and_then(|pieces| pieces.first()).copied();
        if entry.append {
            let Some(earlier) = earlier else {
                let what =
                    format!("appends to {path}, which no overlay before {} writes", overlay.name);
                let hint =
                    "name the overlay that brings it before this one, or bring the whole file";
                return faults.push(fault(overlay, &entry.location, what, hint));
            };
            if !matches!(earlier.entry.source, Source::File(_) | Source::Template { .. }) {
                let kind = describe_entry(earlier.entry);
                let other = self.name(earlier.layer);
                let what = format!("appends to {path}, which is {kind} in overlay {other}");
                return faults.push(fault(
                    overlay,
                    &entry.location,
                    what,
                    "only a file can be appended to",
                ));
            }
            self.paths.entry(path).or_default().push(piece);
            return;
        }
        if let Some(earlier) =
            earlier.filter(|earlier| !entry.replace && differs(earlier.entry, entry))
        {
            let now = describe_entry(entry);
            let before = describe_entry(earlier.entry);
            let other = self.name(earlier.layer);
            let what = format!(
                "{path} is {now} in overlay {}, and {before} in overlay {other}",
                overlay.name
            );
            let hint = "give both the same mode and owner, or write replace = true where the later one means it";
            faults.push(fault(overlay, &entry.location, what, hint));
        }
        self.paths.insert(path, vec![piece]);
    }

    fn enable(&mut self, number: usize, faults: &mut Vec<Fault>) {
        let overlay = self.layers[number];
        for (service, (level, line)) in &overlay.services.enabled {
            let level = *level;
            let enabled = self
                .services
                .entry(service.as_str())
                .or_insert(Enabled { level, layers: Vec::new() });
            if enabled.level != level {
                let other = enabled.level;
                let owner = enabled.layers.first().map(|owner| &self.layers[*owner].name);
                let owner = owner.map(ToString::to_string).unwrap_or_default();
                let what = format!(
                    "enables `{service}` in runlevel {level}, but overlay {owner} enables it in {other}"
                );
                let hint = "a service starts once: take one of the two out, or write remove = [..] under [services]";
                faults.push(in_manifest(overlay, *line, what, hint));
            }
            enabled.layers.push(number);
        }
    }

    fn enable_units(&mut self, number: usize) {
        let overlay = self.layers[number];
        for unit in overlay.units.enabled.keys().map(String::as_str) {
            self.units.entry(unit).or_default().push(number);
            self.masked.remove(unit);
        }
        for unit in overlay.units.masked.keys().map(String::as_str) {
            self.masked.entry(unit).or_default().push(number);
            self.units.remove(unit);
        }
    }

    fn conflicting_services(&self, faults: &mut Vec<Fault>) {
        for overlay in &self.layers {
            for (service, line) in &overlay.services.conflicts {
                let Some(enabled) = self.services.get(service.as_str()) else { continue };
                let owner = enabled
                    .layers
                    .first()
                    .map(|owner| self.name(*owner).to_string())
                    .unwrap_or_default();
                let what = format!(
                    "overlay {} cannot run beside service `{service}` of overlay {owner}",
                    overlay.name
                );
                let hint =
                    "use one of the two overlays, or remove the service: [services] remove = [..]";
                faults.push(in_manifest(overlay, *line, what, hint));
            }
        }
    }

    /// Reports paths that differ only by case: the later overlay was probably meant to replace the
    /// earlier file.
    fn same_but_for_case(&self, faults: &mut Vec<Fault>) {
        let mut seen: BTreeMap<String, (&SafePath, Piece<'_>)> = BTreeMap::new();
        for (path, pieces) in &self.paths {
            let Some(piece) = pieces.first().copied() else { continue };
            if let Some((other, earlier)) =
                seen.insert(path.relative().to_lowercase(), (path, piece))
            {
                let overlay = self.layers[piece.layer];
                let owner = self.name(earlier.layer);
                let what = format!(
                    "{path} of overlay {} and {other} of overlay {owner} differ only by case",
                    overlay.name
                );
                faults.push(fault(overlay, &piece.entry.location, what, "rename one of the two"));
            }
        }
    }
}

/// Returns whether kind, mode or owner differ. Links have neither mode nor owner and may replace a
/// file.
fn differs(earlier: &OverlayEntry, later: &OverlayEntry) -> bool {
    let link = |entry: &OverlayEntry| matches!(entry.source, Source::Link(_));
    let directory = |entry: &OverlayEntry| entry.source == Source::Directory;
    if directory(earlier) != directory(later) {
        return true;
    }
    !link(earlier) && !link(later) && (earlier.mode, earlier.owner) != (later.mode, later.owner)
}
