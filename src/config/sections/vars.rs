//! `vars = { name = value }`: variables of a profile or a group.

use crate::reader::{Document, Located, Table};
use meshd_types::{VarName, VarValue};

/// Maximum number of variables of a profile, a group or a node.
pub const MAX_VARS: usize = 256;

/// Reads variables in the order of the file.
pub(crate) fn read(document: &Document, table: &Table<'_>) -> Vec<(VarName, Located<VarValue>)> {
    let Some(vars) = table.table("vars") else { return Vec::new() };
    let keys = vars.keys();
    table.is_within("vars", MAX_VARS, keys.len(), "variables");
    let mut read = Vec::new();
    for key in keys.into_iter().take(MAX_VARS) {
        let name = key.parse::<VarName>().map_err(|error| document.error(&key, &error));
        let value = vars.variable(&key);
        if let (Ok(name), Some(value)) = (name, value) {
            read.push((name, value));
        }
    }
    read
}
