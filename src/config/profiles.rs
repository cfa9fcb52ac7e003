//! `[profiles.*]`: profiles as written, then with everything inherited already in them.

use super::{
    Profile, VfioSelector, check,
    fault::suggest,
    reader::{At, Document, Entry, Table},
};
use crate::id::{ImageName, OverlayName, ProfileName, Vars};
use std::collections::{BTreeMap, BTreeSet};

/// Most profiles of a site.
const MAX_PROFILES: usize = 1024;
/// Most overlays, and most PCI selectors, of a profile with all that it inherits.
const MAX_OVERLAYS: usize = 64;
/// Most packages of a profile with all that it inherits.
const MAX_PACKAGES: usize = 512;
/// Longest kernel arguments of a profile, in bytes. The kernel takes 2048 on x86; meshd's own need about 600.
const MAX_ARGS: usize = 1024;

/// One profile as it stands in the file.
struct Written {
    name: ProfileName,
    place: At<()>,
    extends: Option<At<ProfileName>>,
    /// An `extends` is written, readable or not: what it would bring is unknown then.
    has_parent: bool,
    image: Option<At<ImageName>>,
    has_image: bool,
    overlays: Vec<At<OverlayName>>,
    kernel_args: Vec<At<String>>,
    packages: Vec<At<String>>,
    vfio: Vec<At<VfioSelector>>,
}

type All = BTreeMap<ProfileName, Written>;

/// Reads `[profiles]` and `[defaults]`; records what is wrong with either.
pub(super) fn read(document: &Document, root: &Table<'_>) -> Option<(ProfileName, BTreeMap<ProfileName, Profile>)> {
    let all = written(document, root);
    let default = default_profile(root, &all);
    let mut profiles = BTreeMap::new();
    for profile in all.values() {
        if let Some(chain) = chain(document, &all, profile)
            && let Some(resolved) = inherit(document, &chain)
        {
            profiles.insert(resolved.name.clone(), resolved);
        }
    }
    Some((default?, profiles))
}

fn default_profile(root: &Table<'_>, all: &All) -> Option<ProfileName> {
    let hint = "say which profile an unknown node boots: [defaults] profile = \"discovery\"";
    let defaults = root.required("defaults", root.table("defaults"), hint)?;
    let name = defaults.required("profile", defaults.parsed::<ProfileName>("profile"), hint)?;
    if !all.contains_key(&name.value) {
        defaults.fault_at(&name, format!("there is no profile `{}`", name.value), names(&name.value, all));
    }
    Some(name.value)
}

fn names(text: &ProfileName, all: &All) -> String {
    let near = suggest(text.as_str(), all.keys().map(ProfileName::as_str));
    if all.is_empty() { format!("write a section [profiles.{text}]") } else { near }
}

fn written(document: &Document, root: &Table<'_>) -> All {
    let hint = "describe at least one: [profiles.discovery] image = \"..\" overlays = [..]";
    let Some(table) = root.required("profiles", root.table("profiles"), hint) else { return All::new() };
    let entries = table.entries();
    if entries.is_empty() {
        document.fault(&table.here(), "there is no profile", hint);
    }
    if entries.len() > MAX_PROFILES {
        document.fault(&table.here(), format!("more than {MAX_PROFILES} profiles"), "remove some");
    }
    let read = entries.into_iter().filter_map(|entry| one(document, entry));
    read.map(|profile| (profile.name.clone(), profile)).collect()
}

fn one(document: &Document, Entry { name, table }: Entry<'_>) -> Option<Written> {
    let parsed = name.parse::<ProfileName>().map_err(|error| check::fault(document, &name, &error));
    let checked = |key: &str, rule: fn(&str) -> Result<(), String>| -> Vec<At<String>> {
        let keep = |text: &At<String>| rule(text).map_err(|error| check::fault(document, text, &error)).is_ok();
        table.strings(key).into_iter().filter(keep).collect()
    };
    let written = Written {
        place: table.here(),
        extends: table.parsed("extends"),
        has_parent: table.has("extends"),
        image: table.parsed("image"),
        has_image: table.has("image"),
        overlays: table.list("overlays"),
        kernel_args: checked("kernel_args", check::kernel_arg),
        packages: checked("packages", check::package),
        vfio: table.table("vfio").map(|vfio| vfio.list("devices")).unwrap_or_default(),
        name: parsed.ok()?,
    };
    Some(written)
}

/// A profile and those that it extends, the outermost parent first; `None` when the chain is broken.
fn chain<'a>(document: &Document, all: &'a All, profile: &'a Written) -> Option<Vec<&'a Written>> {
    let mut chain = vec![profile];
    let mut seen = BTreeSet::from([&profile.name]);
    let mut last = profile;
    while let Some(parent) = &last.extends {
        let Some(next) = all.get(&parent.value) else {
            // Each broken link is reported by the profile that has it, once.
            if std::ptr::eq(last, profile) {
                document.fault(parent, format!("there is no profile `{}`", parent.value), names(&parent.value, all));
            }
            return None;
        };
        if !seen.insert(&next.name) {
            if next.name == profile.name {
                let names: Vec<&str> = chain.iter().map(|profile| profile.name.as_str()).collect();
                let circle = format!("{} -> {}", names.join(" -> "), profile.name);
                let place = profile.extends.as_ref().unwrap_or(parent);
                document.fault(place, format!("extends itself: {circle}"), "remove one `extends` of the circle");
            }
            return None;
        }
        chain.push(next);
        last = next;
    }
    // A faulty `extends` was reported where it stands; what it would bring is unknown.
    if last.has_parent {
        return None;
    }
    chain.reverse();
    Some(chain)
}

/// Appends the lists of a chain, parents' first; the nearest image wins.
fn inherit(document: &Document, chain: &[&Written]) -> Option<Profile> {
    let own = chain.last()?;
    if !chain.iter().any(|profile| profile.has_image) {
        let hint = "write image = \"..\", or extend a profile that has one";
        document.fault(&own.place, "neither this profile nor one that it extends names an image", hint);
    }
    let mut overlays: Vec<OverlayName> = Vec::new();
    for overlay in chain.iter().flat_map(|profile| &profile.overlays) {
        // Named again further down the chain, an overlay moves to the later place: a later one wins.
        overlays.retain(|earlier| *earlier != overlay.value);
        overlays.push(overlay.value.clone());
    }
    let resolved = Profile {
        name: own.name.clone(),
        extends: own.extends.as_ref().map(|parent| parent.value.clone()),
        image: chain.iter().rev().find_map(|profile| profile.image.as_ref())?.value.clone(),
        overlays,
        kernel_args: gather(chain, |profile| &profile.kernel_args),
        packages: gather(chain, |profile| &profile.packages),
        vfio: gather(chain, |profile| &profile.vfio),
        vars: Vars::new(),
    };
    let args: usize = resolved.kernel_args.iter().map(|arg| arg.len() + 1).sum();
    let bounds = [
        (resolved.overlays.len(), MAX_OVERLAYS, "overlays"),
        (resolved.packages.len(), MAX_PACKAGES, "packages"),
        (resolved.vfio.len(), MAX_OVERLAYS, "vfio.devices"),
        (args, MAX_ARGS, "bytes of kernel arguments"),
    ];
    for (found, most, what) in bounds.into_iter().filter(|(found, most, _)| found > most) {
        document.fault(&own.place, format!("{found} {what} with all that is inherited"), format!("at most {most}"));
    }
    Some(resolved)
}

/// One list of all profiles of a chain; what is named twice counts once.
fn gather<T: Clone + PartialEq>(chain: &[&Written], list: impl Fn(&Written) -> &Vec<At<T>>) -> Vec<T> {
    let mut out: Vec<T> = Vec::new();
    for value in chain.iter().flat_map(|profile| list(profile)) {
        if !out.contains(&value.value) {
            out.push(value.value.clone());
        }
    }
    out
}
