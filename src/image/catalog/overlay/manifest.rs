//! `overlay.toml`: the manifest of an overlay. Unknown keys are faults.

use super::{
    Golden, System,
    entry::{Entries, MAX_ENTRIES},
    paths::{self, path},
    services::{Runlevel, Services, Units, is_plain_name, is_unit},
    variable::{self, Variable},
};
use meshd_config::{
    Fault,
    reader::{self, Document, Located, Table},
    suggest,
};
use meshd_types::{SafePath, VarName, VarValue};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Maximum length of a kernel parameter's value, in bytes.
const MAX_SYSCTL: usize = 256;

/// Declarations of the manifest other than entries.
#[derive(Default)]
pub(super) struct Declarations {
    pub(super) description: String,
    /// Empty if a fault hides them.
    pub(super) systems: BTreeSet<System>,
    pub(super) services: Services,
    pub(super) units: Units,
    pub(super) packages: BTreeSet<String>,
    pub(super) modules: Vec<String>,
    pub(super) sysctl: BTreeMap<String, String>,
    pub(super) removed: BTreeMap<SafePath, usize>,
    pub(super) variables: BTreeMap<VarName, Variable>,
    pub(super) golden: Golden,
}

/// Parses the manifest and adds modes, owners, links and folders to `entries`.
pub(super) fn read(file: &Path, entries: &mut Entries, faults: &mut Vec<Fault>) -> Declarations {
    let hint = "every overlay has one, with at least: description = \"what it is for\"";
    let document = match reader::read_text(file, hint).and_then(|text| reader::parse(&text, file)) {
        Ok(document) => document,
        Err(found) => {
            faults.extend(found.0);
            return Declarations::default();
        }
    };
    let declared = read_declarations(&document, entries);
    if let Err(found) = document.finish(Some(())) {
        faults.extend(found.0);
    }
    declared
}

fn read_declarations(document: &Document, entries: &mut Entries) -> Declarations {
    let root = document.root();
    let hint = "add: description = \"what it is for, in a line\"";
    let description = root.required("description", root.word("description"), hint);
    let removed = root
        .strings("remove")
        .into_iter()
        .filter_map(|at| Some((path(document, &at)?, at.line)))
        .collect();
    paths::read(document, &root, entries);
    let declared = Declarations {
        description: description.map(|text| document.plain_line(text)).unwrap_or_default(),
        packages: names(document, &root, "packages").into_iter().map(|name| name.value).collect(),
        modules: names(document, &root, "modules").into_iter().map(|name| name.value).collect(),
        services: root
            .table("services")
            .map(|table| services(document, &table))
            .unwrap_or_default(),
        units: root.table("systemd").map(|table| units(document, &table)).unwrap_or_default(),
        systems: systems(document, &root),
        sysctl: root.table("sysctl").map(|table| sysctl(&table)).unwrap_or_default(),
        variables: root
            .entries_of("variables")
            .into_iter()
            .filter_map(|entry| variable::read(document, entry))
            .collect(),
        golden: root.table("golden").map(|table| golden(document, &table)).unwrap_or_default(),
        removed,
    };
    for (at, line) in declared.removed.iter().filter(|(at, _)| entries.contains_key(*at)) {
        let hint = "remove one of the two: a file that is brought replaces an earlier one anyway";
        document.fault_at(
            *line,
            "remove".into(),
            format!("{at} is removed and brought by the same overlay"),
            hint,
        );
    }
    if entries.len() > MAX_ENTRIES {
        document.fault_at(
            0,
            String::new(),
            format!("more than {MAX_ENTRIES} entries"),
            "bring software as packages",
        );
    }
    declared
}

/// Parses names that apk, OpenRC and modprobe accept without quoting; duplicates are faults.
fn names(document: &Document, table: &Table<'_>, key: &str) -> Vec<Located<String>> {
    let mut names: Vec<Located<String>> = Vec::new();
    for name in table.strings(key) {
        if names.iter().any(|other| other.value == name.value) {
            document.fault(
                &name,
                format!("`{}` is here twice", name.value),
                "remove one of the two",
            );
        } else if is_plain_name(&name) {
            names.push(name);
        } else {
            let hint = "write letters, digits, `+`, `.`, `_`, `-`, and no version";
            document.fault(&name, format!("`{}` is not a name", reader::brief(&name)), hint);
        }
    }
    names
}

fn services(document: &Document, table: &Table<'_>) -> Services {
    let mut services = Services::default();
    for level in Runlevel::ALL {
        for name in names(document, table, level.as_str()) {
            if let Some((other, _)) = services.enabled.get(&name.value) {
                let what = format!("`{}` is in runlevel {other} already", name.value);
                document.fault(&name, what, "a service starts once: remove one of the two");
            } else {
                let line = name.line;
                services.enabled.insert(name.value, (level, line));
            }
        }
    }
    let lines = |key: &str| {
        names(document, table, key).into_iter().map(|name| (name.value, name.line)).collect()
    };
    services.removed = lines("remove");
    services.conflicts = lines("conflicts");
    for (name, line) in
        services.conflicts.iter().filter(|(name, _)| services.enabled.contains_key(*name))
    {
        let what = format!("`{name}` is enabled here and in conflict with this overlay");
        document.fault_at(*line, "services.conflicts".into(), what, "remove one of the two");
    }
    services
}

/// Parses `systems`. Without it, an overlay is for Alpine.
fn systems(document: &Document, root: &Table<'_>) -> BTreeSet<System> {
    let mut systems = BTreeSet::new();
    for word in root.strings("systems") {
        match System::ALL.into_iter().find(|system| system.as_str() == word.value) {
            Some(system) => {
                systems.insert(system);
            }
            None => {
                let known = System::ALL.map(System::as_str);
                let what = format!("`{}` is not a system", reader::brief(&word));
                document.fault(&word, what, suggest(&word, known));
            }
        }
    }
    if !root.has("systems") {
        systems.insert(System::Alpine);
    }
    systems
}

fn units(document: &Document, table: &Table<'_>) -> Units {
    let units = |key: &str| {
        let mut lines = BTreeMap::new();
        for name in names(document, table, key) {
            if is_unit(&name) {
                lines.insert(name.value, name.line);
            } else {
                let what = format!("`{}` is not a unit", reader::brief(&name));
                document.fault(&name, what, "write it with its kind, such as `ssh.service`");
            }
        }
        lines
    };
    let packages = names(document, table, "packages").into_iter().map(|name| name.value).collect();
    Units { enabled: units("units"), masked: units("masked"), packages }
}

fn sysctl(table: &Table<'_>) -> BTreeMap<String, String> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-/*".contains(&c);
    let mut values = BTreeMap::new();
    for key in table.keys() {
        let value = match table.variable(&key).map(|value| value.value) {
            Some(VarValue::Integer(number)) => number.to_string(),
            Some(VarValue::Text(text)) => text,
            Some(_) => {
                let hint = "write it as `sysctl -w` takes it: 10 or \"10 20\"";
                table.fault(&key, "is neither a number nor a text", hint);
                continue;
            }
            None => continue,
        };
        let name = key.bytes().all(plain) && key.contains(['.', '/']) && !key.starts_with('/');
        if !name {
            let what = format!("`{}` is no kernel parameter", reader::brief(&key));
            table.fault(&key, what, "write it as \"vm.swappiness\"");
        } else if value.len() > MAX_SYSCTL || value.chars().any(char::is_control) {
            table.fault(
                &key,
                "is not one short line",
                format!("a value has up to {MAX_SYSCTL} bytes"),
            );
        } else {
            values.insert(key.value, value);
        }
    }
    values
}

fn golden(document: &Document, table: &Table<'_>) -> Golden {
    let after = table.list("after").into_iter().map(|name| name.value).collect();
    let mut vars = BTreeMap::new();
    if let Some(table) = table.table("vars") {
        for key in table.keys() {
            let value = table.variable(&key).map(|value| value.value);
            match key.parse::<VarName>() {
                Ok(name) => drop(value.map(|value| vars.insert(name, value))),
                Err(error) => document.fault(
                    &key,
                    error.to_string(),
                    "write a variable that is declared here",
                ),
            }
        }
    }
    Golden { after, vars }
}
