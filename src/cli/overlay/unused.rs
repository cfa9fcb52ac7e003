//! Finds variables of profiles and groups that no overlay uses, such as misspelt names.

use super::render::reading;
use meshd_config::{Fault, Profile, Site, suggest};
use meshd_image::catalog::{Overlay, Overlays, overlay::Reading};
use meshd_types::{OverlayName, ProfileName, VarName};
use std::collections::{BTreeMap, BTreeSet};

/// Overlay that binds PCI devices to vfio-pci.
const VFIO: &str = "vfio";
const VFIO_SERVICE: &str = "mesh-vfio";
const VFIO_UNIT: &str = "mesh-vfio.service";

/// Returns all warnings. Returns none if an overlay has faults, because its variables are then
/// unknown.
pub(in crate::cli) fn warnings(site: &Site) -> Vec<Fault> {
    let Reading { overlays, broken, .. } = reading(site);
    if !broken.is_empty() {
        return Vec::new();
    }
    let mut warnings = undeclared_of_profiles(site, &overlays);
    warnings.extend(undeclared_of_groups(site, &overlays));
    warnings.extend(
        site.profiles
            .values()
            .filter_map(|profile| devices_that_nobody_binds(site, profile, &overlays)),
    );
    warnings.sort_by_key(|warning| warning.line);
    warnings
}

/// Returns the overlays of groups and single nodes, which any node may have in addition to those of
/// its profile.
fn of_nodes<'o>(site: &Site, overlays: &'o Overlays) -> Vec<&'o Overlay> {
    let groups = site.groups.iter().flat_map(|group| &group.overlays);
    groups.filter_map(|name| overlays.named.get(name)).chain(overlays.nodes.values()).collect()
}

fn declared_variables<'o>(names: &[OverlayName], overlays: &'o Overlays) -> BTreeSet<&'o VarName> {
    names
        .iter()
        .filter_map(|name| overlays.named.get(name))
        .flat_map(|overlay| overlay.variables.keys())
        .collect()
}

/// Finds unused variables of profiles. A child profile may use a variable of its parent. An unused
/// variable is reported once, at its line.
fn undeclared_of_profiles(site: &Site, overlays: &Overlays) -> Vec<Fault> {
    let everywhere: BTreeSet<&VarName> =
        of_nodes(site, overlays).iter().flat_map(|it| it.variables.keys()).collect();
    let mut declared_keys: BTreeSet<(&ProfileName, &str)> = BTreeSet::new();
    let mut set: BTreeMap<(&ProfileName, &str), (usize, BTreeSet<&VarName>)> = BTreeMap::new();
    for profile in site.profiles.values() {
        let own = declared_variables(&profile.overlays, overlays);
        for setting in &profile.settings {
            let Some(name) = setting.key.strip_prefix("vars.") else { continue };
            let key = (&setting.by, name);
            if own.iter().chain(&everywhere).any(|known| known.as_str() == name) {
                declared_keys.insert(key);
            }
            let (_, known) = set.entry(key).or_insert((setting.line, BTreeSet::new()));
            known.extend(own.iter().chain(&everywhere).copied());
        }
    }
    let undeclared = set.into_iter().filter(|(key, _)| !declared_keys.contains(key));
    let warning =
        |((by, name), (line, known)): ((&ProfileName, &str), (usize, BTreeSet<&VarName>))| Fault {
            line,
            key: format!("profiles.{by}.vars.{name}"),
            ..Fault::of_file(
                &site.file,
                "no overlay of the profile declares this variable",
                hint(name, &known, overlays),
            )
        };
    undeclared.map(warning).collect()
}

/// Finds unused variables of groups. A node of a group may have any profile, so declarations of all
/// overlays count.
fn undeclared_of_groups(site: &Site, overlays: &Overlays) -> Vec<Fault> {
    let known: BTreeSet<&VarName> =
        overlays.all().flat_map(|overlay| overlay.variables.keys()).collect();
    let undeclared = |group: &meshd_config::Group| {
        let names =
            group.vars.keys().filter(|name| !known.contains(name)).cloned().collect::<Vec<_>>();
        names.into_iter().map(|name| (group.name.clone(), name)).collect::<Vec<_>>()
    };
    let warning = |(group, name): (meshd_types::GroupName, VarName)| Fault {
        key: format!("groups.{group}.vars.{name}"),
        ..Fault::of_file(
            &site.file,
            "no overlay declares this variable",
            hint(name.as_str(), &known, overlays),
        )
    };
    site.groups.iter().flat_map(undeclared).map(warning).collect()
}

/// Suggests a similar name, or the overlay that declares the variable.
fn hint(name: &str, known: &BTreeSet<&VarName>, overlays: &Overlays) -> String {
    if let Some(meant) = meshd_config::nearest(name, known.iter().map(|known| known.as_str())) {
        return format!("did you mean `{meant}`?");
    }
    let declares =
        |overlay: &&Overlay| overlay.variables.keys().any(|known| known.as_str() == name);
    match overlays.all().find(declares) {
        Some(overlay) => {
            format!("overlay {} declares it: add it to the overlays of the profile", overlay.name)
        }
        None => suggest(name, known.iter().map(|known| known.as_str())),
    }
}

/// Returns a fault if a profile selects PCI devices, but no overlay of its nodes binds them to
/// vfio-pci.
fn devices_that_nobody_binds(site: &Site, profile: &Profile, overlays: &Overlays) -> Option<Fault> {
    if profile.vfio.is_empty() {
        return None;
    }
    let named = profile.overlays.iter().filter_map(|name| overlays.named.get(name));
    let binds = |overlay: &&Overlay| {
        overlay.services.enabled.contains_key(VFIO_SERVICE)
            || overlay.units.enabled.contains_key(VFIO_UNIT)
    };
    if named.chain(of_nodes(site, overlays)).any(|overlay| binds(&overlay)) {
        return None;
    }
    let line = profile
        .settings
        .iter()
        .find(|setting| setting.key == "vfio.devices")
        .map_or(0, |setting| setting.line);
    let message = format!("no overlay of profile {} gives these devices to vfio-pci", profile.name);
    let fault =
        Fault::of_file(&site.file, message, format!("add the overlay `{VFIO}` to its overlays"));
    Some(Fault { line, key: format!("profiles.{}.vfio.devices", profile.name), ..fault })
}
