//! `[secrets]`: the file of each secret that overlays use. The site never contains the values.

use crate::reader::{Document, Table};
use meshd_types::VarName;
use std::{collections::BTreeMap, path::PathBuf};

const MAX_SECRETS: usize = 256;

/// Reads `[secrets]`: `name = { file = "/path" }`. Files are not opened.
pub(crate) fn read(document: &Document, root: &Table<'_>) -> BTreeMap<VarName, PathBuf> {
    let mut secrets = BTreeMap::new();
    let entries = root.table("secrets").map(|table| table.entries()).unwrap_or_default();
    if entries.len() > MAX_SECRETS {
        root.fault("secrets", format!("more than {MAX_SECRETS} secrets"), "remove those that no overlay uses");
    }
    for entry in entries {
        let file = entry.table.required("file", entry.table.path("file"), "write its file: { file = \"/path\" }");
        match entry.name.parse::<VarName>() {
            Ok(name) => drop(file.map(|file| secrets.insert(name, file.value))),
            Err(error) => document.error(&entry.name, &error),
        }
    }
    secrets
}
