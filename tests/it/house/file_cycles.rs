//! Import cycles between the files of a crate, also within a folder.

use super::paths::{Edges, Named, cycles, is_root, module, released};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Cycles that are left. Break one and remove it here; add none.
const KNOWN_CYCLES: [&str; 1] = [
    // The model owns its indexes, and an index answers questions of the model: both are one unit,
    // in files by subject. Kinds of records name the index that they update.
    "src/store/index/dhcp_record_changes.rs src/store/index/expected_machines.rs src/store/index/nic_index.rs src/store/index/operations.rs src/store/index/rollouts.rs src/store/index/sessions.rs src/store/index/tasks.rs \
     src/store/index/unavailable_units.rs src/store/index/vm_index.rs src/store/model.rs src/store/records/mod.rs \
     src/store/tx.rs",
];
/// Maximum number of re-exports between a path and the definition of its item.
const MAX_HOPS: usize = 12;

/// The file of a module.
fn file_of(module: &Path) -> Option<PathBuf> {
    let files = [module.join("mod.rs"), module.join("lib.rs"), module.with_extension("rs")];
    files.into_iter().find(|file| file.is_file())
}

/// The file that defines what a path names: follows imported names, and re-exports of other files.
/// `None` outside of the crate.
fn definition(
    files: &BTreeMap<PathBuf, Named>,
    from: &Path,
    named: &[String],
    hops: usize,
) -> Option<PathBuf> {
    let hops = hops.checked_sub(1)?;
    let (first, after) = named.split_first()?;
    let below = [&["self".to_owned()], named].concat();
    let found = match module(from, named) {
        Some(found) => Some(found),
        // A module that the file declares.
        None => module(from, &below).filter(|(_, rest)| rest.len() < named.len()),
    };
    let Some((module, rest)) = found else {
        let import =
            files.get(from)?.imports.get(first).filter(|import| import.first() != Some(first))?;
        return definition(files, from, &[import, after].concat(), hops);
    };
    let file = file_of(&module)?;
    let import =
        rest.first().and_then(|item| files.get(&file)?.imports.get(item)).filter(|_| file != from);
    let elsewhere =
        import.and_then(|import| definition(files, &file, &[import, &rest[1..]].concat(), hops));
    Some(elsewhere.unwrap_or(file))
}

/// True if one of two files is the root of a folder that holds the other.
fn is_whole_and_part(one: &Path, other: &Path) -> bool {
    let holds = |root: &Path, part: &Path| {
        is_root(root) && root.parent().is_some_and(|folder| part.starts_with(folder))
    };
    holds(one, other) || holds(other, one)
}

/// Imports between files. A `mod.rs` or `lib.rs` and the files below it are exempt: the root
/// composes its parts, and the parts may name what it declares.
fn file_edges() -> Edges {
    let files: BTreeMap<PathBuf, Named> =
        released().map(|(path, text)| (path, Named::of(&text))).collect();
    let mut edges = Edges::new();
    for (from, named) in &files {
        let targets =
            named.paths.iter().filter_map(|named| definition(&files, from, named, MAX_HOPS));
        let others = targets
            .filter(|to| to != from && files.contains_key(to) && !is_whole_and_part(from, to));
        edges.entry(from.clone()).or_default().extend(others);
    }
    edges
}

#[test]
fn files_have_no_import_cycle() {
    let found = cycles(&file_edges());
    let left: BTreeSet<String> = KNOWN_CYCLES.into_iter().map(str::to_owned).collect();
    let new: Vec<&String> = found.difference(&left).collect();
    assert!(new.is_empty(), "give what these files share a file of its own: {new:#?}");
    let gone: Vec<&String> = left.difference(&found).collect();
    assert!(gone.is_empty(), "remove from KNOWN_CYCLES: {gone:#?}");
}
