//! `[secrets]`: the file of each secret, and the overlays that may use it. A rule of BMCs may use
//! one as password. The site never contains
//! the values.

use crate::reader::{Document, Table};
use meshd_types::{OverlayName, VarName};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

const MAX_SECRETS: usize = 256;

/// Location of a secret, and its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSource {
    pub file: PathBuf,
    /// The overlays that may use the secret; `None` permits all. None may use a password of BMCs
    /// that names no overlays.
    pub overlays: Option<BTreeSet<OverlayName>>,
}

/// Reads `[secrets]`: `name = { file = "/path", overlays = ["name"] }`. Files are not opened.
pub(crate) fn read(document: &Document, root: &Table<'_>) -> BTreeMap<VarName, SecretSource> {
    let mut secrets = BTreeMap::new();
    let entries = root.entries_of("secrets");
    if entries.len() > MAX_SECRETS {
        root.fault(
            "secrets",
            format!("more than {MAX_SECRETS} secrets"),
            "remove those that nothing uses",
        );
    }
    for entry in entries {
        let file = entry.table.required(
            "file",
            entry.table.path("file"),
            "write its file: { file = \"/path\" }",
        );
        let names = entry.table.list("overlays");
        let overlays =
            entry.table.has("overlays").then(|| names.into_iter().map(|name| name.value).collect());
        match entry.name.parse::<VarName>() {
            Ok(name) => {
                if let Some(file) = file {
                    secrets.insert(name, SecretSource { file: file.value, overlays });
                }
            }
            Err(error) => document.error(&entry.name, &error),
        }
    }
    secrets
}
