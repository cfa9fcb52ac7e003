//! `[profiles.*]`: profiles, with inheritance resolved.
//!
//! | module | content |
//! | --- | --- |
//! | `inheritance` | resolves inheritance of profiles, and records the origin of each setting |
//! | `written` | one profile as written in the file, before inheritance |

mod inheritance;
mod written;

use crate::{
    Profile,
    fault::suggest,
    reader::{Document, Table},
};
use meshd_types::ProfileName;
use std::collections::{BTreeMap, BTreeSet};
use written::WrittenProfile;

const MAX_PROFILES: usize = 1024;

type All = BTreeMap<ProfileName, WrittenProfile>;

/// Reads `[profiles]` and `[defaults]`.
pub(crate) fn read(
    document: &Document,
    root: &Table<'_>,
) -> Option<(ProfileName, BTreeMap<ProfileName, Profile>)> {
    let all = all(document, root);
    let default = default_profile(root, &all);
    let mut profiles = BTreeMap::new();
    for profile in all.values() {
        if let Some(chain) = chain(document, &all, profile)
            && let Some(resolved) = inheritance::inherit(document, &chain)
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
        defaults.fault_at(
            &name,
            format!("there is no profile `{}`", name.value),
            names(&name.value, all),
        );
    }
    Some(name.value)
}

fn names(text: &ProfileName, all: &All) -> String {
    if all.is_empty() {
        format!("write a section [profiles.{text}]")
    } else {
        suggest(text.as_str(), all.keys().map(ProfileName::as_str))
    }
}

fn all(document: &Document, root: &Table<'_>) -> All {
    let hint = "describe at least one: [profiles.discovery] image = \"..\" overlays = [..]";
    let Some(table) = root.required("profiles", root.table("profiles"), hint) else {
        return All::new();
    };
    let entries = table.entries();
    if entries.is_empty() {
        document.fault(&table.own_position(), "there is no profile", hint);
    }
    if entries.len() > MAX_PROFILES {
        document.fault(
            &table.own_position(),
            format!("more than {MAX_PROFILES} profiles"),
            "remove some",
        );
    }
    let read = entries.into_iter().filter_map(|entry| {
        let name =
            entry.name.parse::<ProfileName>().map_err(|error| document.error(&entry.name, &error));
        let written = WrittenProfile::read(document, &entry.table);
        name.ok().map(|name| WrittenProfile { name, ..written })
    });
    read.map(|profile| (profile.name.clone(), profile)).collect()
}

/// Returns a profile and its parents, the outermost first; `None` if a parent is missing or has a
/// fault.
fn chain<'a>(
    document: &Document,
    all: &'a All,
    profile: &'a WrittenProfile,
) -> Option<Vec<&'a WrittenProfile>> {
    let mut chain = vec![profile];
    let mut seen = BTreeSet::from([&profile.name]);
    let mut last = profile;
    while let Some(parent) = &last.extends {
        let Some(next) = all.get(&parent.value) else {
            // A missing parent is reported once, by the profile that names it.
            if std::ptr::eq(last, profile) {
                document.fault(
                    parent,
                    format!("there is no profile `{}`", parent.value),
                    names(&parent.value, all),
                );
            }
            return None;
        };
        if !seen.insert(&next.name) {
            if next.name == profile.name {
                let names: Vec<&str> = chain.iter().map(|profile| profile.name.as_str()).collect();
                let cycle = format!("{} -> {}", names.join(" -> "), profile.name);
                let position = profile.extends.as_ref().unwrap_or(parent);
                document.fault(
                    position,
                    format!("extends itself: {cycle}"),
                    "remove one `extends` of the cycle",
                );
            }
            return None;
        }
        chain.push(next);
        last = next;
    }
    // The fault of an invalid `extends` was reported; inherited values are unknown.
    if last.has_parent {
        return None;
    }
    chain.reverse();
    Some(chain)
}
