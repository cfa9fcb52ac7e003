//! Resolves inheritance of profiles, and records the origin of each setting.
//!
//! | kind | rule |
//! | --- | --- |
//! | lists | each profile appends to the list of its parent; `-x` removes an inherited `x` |
//! | overlays, kernel arguments | a repeated element moves to its later position; of a kernel argument key the last value counts |
//! | single values, variables, checks, thresholds | the most derived profile takes precedence |

use super::written::{THRESHOLDS, Threshold, WrittenProfile};
use crate::{
    Profile, Setting,
    edit::{Edit, arg_key, removes_arg, replaces_arg},
    fault::suggest,
    reader::{Document, Located},
};
use meshd_proto::{CheckPolicy, CheckRule, Thresholds};
use meshd_types::{ProfileName, VarValue, Vars};
use std::fmt::Display;

/// Maximum number of overlays, of bundles and of PCI selectors, including inherited ones.
const MAX_OVERLAYS: usize = 64;
/// Maximum number of packages, including inherited ones.
const MAX_PACKAGES: usize = 512;
/// Maximum length of the kernel arguments in bytes. The kernel takes 2048 on x86; those of meshd
/// need about 600.
const MAX_ARGS: usize = 1024;

/// The state of merging one profile. `chain` begins with the outermost parent.
struct Merge<'a> {
    document: &'a Document,
    chain: &'a [&'a WrittenProfile],
    settings: Vec<Setting>,
}

/// The merge rules of one list.
struct Rules<T> {
    key: &'static str,
    /// Whether a later element replaces an earlier one. Otherwise an equal later element is
    /// ignored.
    replaces: fn(&T, &T) -> bool,
    /// Whether a removal applies to an element.
    removes: fn(&T, &T) -> bool,
}

/// Merges a chain; `None` if it has no image.
pub(crate) fn inherit(document: &Document, chain: &[&WrittenProfile]) -> Option<Profile> {
    let own = chain.last()?;
    if !chain.iter().any(|profile| profile.has_image) {
        let hint = "write image = \"..\", or extend a profile that has one";
        document.fault(
            &own.position,
            "neither this profile nor one that it extends names an image",
            hint,
        );
    }
    let mut merge = Merge { document, chain, settings: Vec::new() };
    let image = merge.nearest("image", |profile| profile.image.as_ref())?;
    let overlays = Rules { key: "overlays", replaces: PartialEq::eq, removes: PartialEq::eq };
    let args = Rules {
        key: "kernel_args",
        replaces: |later: &String, earlier: &String| replaces_arg(later, earlier),
        removes: |pattern: &String, arg: &String| removes_arg(pattern, arg),
    };
    let mut profile = Profile {
        extends: own.extends.as_ref().map(|parent| parent.value.clone()),
        overlays: merge.list(&overlays, |profile| &profile.overlays),
        kernel_args: merge.list(&args, |profile| &profile.kernel_args),
        packages: merge.list(&Rules::once("packages"), |profile| &profile.packages),
        bundles: merge.list(&Rules::once("bundles"), |profile| &profile.bundles),
        vfio: merge.list(&Rules::once("vfio.devices"), |profile| &profile.vfio),
        data_disks: merge.list(&Rules::once("storage.data"), |profile| &profile.data_disks),
        ..Profile::new(own.name.clone(), image)
    };
    merge.hugepages(&mut profile);
    profile.writable = merge.nearest("writable", |profile| profile.writable.as_ref());
    let root_mode = merge.nearest("root_mode", |profile| profile.root_mode.as_ref());
    profile.root_mode = root_mode.unwrap_or_default();
    let warm = merge.nearest("warm", |profile| profile.warm.as_ref());
    profile.warm = warm.unwrap_or_default();
    profile.vars = merge.vars();
    profile.checks = merge.checks();
    profile.settings = merge.settings;
    bounds(document, own, &profile);
    Some(profile)
}

impl<T: PartialEq> Rules<T> {
    /// Ignores repeated elements.
    fn once(key: &'static str) -> Self {
        Rules { key, replaces: |_, _| false, removes: PartialEq::eq }
    }
}

fn text(value: impl Display) -> VarValue {
    VarValue::Text(value.to_string())
}

impl Merge<'_> {
    fn set(&mut self, key: impl Into<String>, value: VarValue, by: &ProfileName) {
        self.set_at(key, value, by, 0);
    }

    fn set_at(&mut self, key: impl Into<String>, value: VarValue, by: &ProfileName, line: usize) {
        self.settings.push(Setting {
            key: key.into(),
            value,
            by: by.clone(),
            removed_by: None,
            line,
        });
    }

    /// Returns the value of the most derived profile.
    fn nearest<T: Clone + Display>(
        &mut self,
        key: &str,
        pick: impl Fn(&WrittenProfile) -> Option<&Located<T>>,
    ) -> Option<T> {
        let (value, by) = self
            .chain
            .iter()
            .rev()
            .find_map(|profile| Some((pick(profile)?.value.clone(), &profile.name)))?;
        self.set(key, text(&value), by);
        Some(value)
    }

    fn list<T: Clone + PartialEq + Display>(
        &mut self,
        rules: &Rules<T>,
        pick: impl Fn(&WrittenProfile) -> &Vec<Located<Edit<T>>>,
    ) -> Vec<T> {
        let mut list: Vec<(T, &ProfileName, usize)> = Vec::new();
        let mut removed_settings: Vec<Setting> = Vec::new();
        for profile in self.chain {
            for edit in pick(profile) {
                match &edit.value {
                    Edit::Add(value) => {
                        let before = list.len();
                        list.retain(|(earlier, ..)| !(rules.replaces)(value, earlier));
                        if list.len() < before
                            || (rules.key == "kernel_args")
                            || list.iter().all(|(element, ..)| element != value)
                        {
                            list.push((value.clone(), &profile.name, edit.line));
                        }
                    }
                    Edit::Remove(value) => {
                        let (removed, rest): (Vec<_>, Vec<_>) = list
                            .into_iter()
                            .partition(|(element, ..)| (rules.removes)(value, element));
                        list = rest;
                        if removed.is_empty() {
                            self.nothing_to_remove(edit, value, &list);
                        }
                        removed_settings.extend(removed.into_iter().map(|(element, by, line)| {
                            Setting {
                                key: rules.key.to_owned(),
                                value: text(element),
                                by: by.clone(),
                                removed_by: Some(profile.name.clone()),
                                line,
                            }
                        }));
                    }
                }
            }
        }
        for (value, by, line) in &list {
            self.set_at(rules.key, text(value), by, *line);
        }
        self.settings.extend(removed_settings);
        list.into_iter().map(|(value, ..)| value).collect()
    }

    fn nothing_to_remove<T: Display>(
        &self,
        edit: &Located<Edit<T>>,
        value: &T,
        list: &[(T, &ProfileName, usize)],
    ) {
        let inherited: Vec<String> = list.iter().map(|(element, ..)| element.to_string()).collect();
        let message = format!("removes `{value}`, which is not inherited");
        let hint = if inherited.is_empty() {
            "remove it".to_owned()
        } else {
            let key = value.to_string();
            suggest(
                &key,
                inherited
                    .iter()
                    .map(|arg| if key.contains('=') { arg.as_str() } else { arg_key(arg) }),
            )
        };
        self.document.fault(edit, message, hint);
    }

    /// Converts the table of the most derived profile to kernel arguments.
    fn hugepages(&mut self, profile: &mut Profile) {
        let nearest = self
            .chain
            .iter()
            .rev()
            .find_map(|written| Some((written, written.hugepages.as_ref()?)));
        let Some((written, pages)) = nearest else { return };
        self.set("hugepages", text(pages.value), &written.name);
        if pages.value.count == 0 {
            return;
        }
        if let Some(other) =
            profile.kernel_args.iter().find(|arg| arg_key(arg).starts_with("hugepages"))
        {
            let message =
                format!("conflicts with the kernel argument `{other}`: both reserve pages");
            self.document.fault(
                pages,
                message,
                format!("keep one: kernel_args = [\"-{}\"]", arg_key(other)),
            );
        }
        profile.hugepages = Some(pages.value);
        for arg in pages.value.kernel_args() {
            self.set("kernel_args", text(&arg), &written.name);
            profile.kernel_args.push(arg);
        }
    }

    fn vars(&mut self) -> Vars {
        let mut vars = std::collections::BTreeMap::new();
        for profile in self.chain {
            vars.extend(
                profile.vars.iter().map(|(name, value)| (name.clone(), (value, &profile.name))),
            );
        }
        for (name, (value, by)) in &vars {
            self.set_at(format!("vars.{name}"), value.value.clone(), by, value.line);
        }
        vars.into_iter().map(|(name, (value, _))| (name, value.value.clone())).collect()
    }

    fn checks(&mut self) -> CheckPolicy {
        let mut rules = std::collections::BTreeMap::new();
        for profile in self.chain {
            rules.extend(
                profile
                    .checks
                    .iter()
                    .map(|check| (check.value.0.clone(), (check.value.1, &profile.name))),
            );
        }
        for (name, (rule, by)) in &rules {
            self.set(format!("checks.{name}"), text(rule.as_str()), by);
        }
        let mut thresholds = Thresholds::default();
        for Threshold { key, field, .. } in THRESHOLDS {
            let of = |profile: &&WrittenProfile| {
                let found = profile.thresholds.iter().find(|threshold| threshold.value.0 == key)?;
                Some((found.value.1, profile.name.clone()))
            };
            let Some((value, by)) = self.chain.iter().rev().find_map(of) else { continue };
            self.set(format!("thresholds.{key}"), VarValue::Integer(value), &by);
            *field(&mut thresholds) = u64::try_from(value).ok();
        }
        let rules = rules.into_iter().map(|(name, (rule, _))| (name, rule));
        CheckPolicy {
            rules: rules.filter(|(_, rule)| *rule != CheckRule::On).collect(),
            thresholds,
        }
    }
}

fn bounds(document: &Document, own: &WrittenProfile, profile: &Profile) {
    let args: usize = profile.kernel_args.iter().map(|arg| arg.len() + 1).sum();
    let bounds = [
        (profile.overlays.len(), MAX_OVERLAYS, "overlays"),
        (profile.bundles.len(), MAX_OVERLAYS, "bundles"),
        (profile.packages.len(), MAX_PACKAGES, "packages"),
        (profile.vfio.len(), MAX_OVERLAYS, "vfio.devices"),
        (profile.data_disks.len(), MAX_OVERLAYS, "storage.data"),
        (profile.vars.len(), crate::MAX_VARS, "vars"),
        (args, MAX_ARGS, "bytes of kernel arguments"),
    ];
    for (count, maximum, elements) in
        bounds.into_iter().filter(|(count, maximum, _)| count > maximum)
    {
        document.fault(
            &own.position,
            format!("{count} {elements} including inherited ones"),
            format!("at most {maximum}"),
        );
    }
}
