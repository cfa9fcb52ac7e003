//! Folders: their size, the map of their modules, and the paths that documents name.

use super::{is_tests, programs, sources};
use std::{collections::BTreeMap, fs, path::Path};

const MAX_ENTRIES: usize = 15;

#[test]
fn folder_with_more_than_15_entries_is_refused() {
    let mut entries: BTreeMap<String, usize> = BTreeMap::new();
    let sources = sources();
    let tests = programs("tests");
    for folder in sources.keys().chain(tests.keys()).filter_map(|path| path.parent()) {
        // Cargo.toml lists the crates of src/.
        let own = fs::read_dir(folder)
            .unwrap()
            .filter(|entry| !entry.as_ref().unwrap().path().join("Cargo.toml").exists());
        entries.insert(folder.display().to_string(), own.count());
    }
    let large = entries.iter().filter(|(_, count)| **count > MAX_ENTRIES);
    let faults: Vec<String> = large
        .map(|(folder, count)| {
            format!(
                "{folder} has {count} entries: split it into sub-folders that each hold one idea"
            )
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

/// Modules that a file declares, without those of tests.
fn declared(text: &str) -> Vec<String> {
    let file = syn::parse_file(text).unwrap();
    let modules = file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module)
            if module.content.is_none() && !module.attrs.iter().any(is_for_tests) =>
        {
            Some(module.ident.to_string())
        }
        _ => None,
    });
    modules.collect()
}

#[test]
fn folder_map_names_every_module() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let is_folder = path.ends_with("mod.rs") || path.ends_with("lib.rs");
        if !is_folder || is_tests(&path) {
            continue;
        }
        let map: String = text
            .lines()
            .take_while(|line| line.starts_with("//!") || line.starts_with("#![doc"))
            .collect();
        let missing =
            declared(&text).into_iter().filter(|name| !map.contains(&format!("`{name}`")));
        faults.extend(
            missing
                .map(|module| format!("{}: add a line for `{module}` to the map", path.display())),
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Documents for people who read the code; docs/adr/ keeps the names of its time.
pub(super) fn documents() -> Vec<String> {
    let markdown = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    let mut found = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for folder in ["docs", "docs/operations"] {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        found.extend(paths.filter(|path| markdown(path)).map(|path| path.display().to_string()));
    }
    found
}

/// Whether a path names a source, or the end of the path of one: `src/trust/`,
/// `trust/overlay_capability.rs`, `table.rs`.
fn names_a_source(path: &str, all: &[String]) -> bool {
    Path::new(path).exists() || all.iter().any(|source| source.ends_with(&format!("/{path}")))
}

#[test]
fn source_path_in_a_document_exists() {
    let mut all = BTreeMap::new();
    ["src", "tests", "benches"].iter().for_each(|folder| super::walk(Path::new(folder), &mut all));
    let all: Vec<String> = all.keys().map(|path| path.display().to_string()).collect();
    let mut faults = Vec::new();
    let mut named = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let is_path = |span: &&str| span.chars().all(|c| c.is_alphanumeric() || "/_-.".contains(c));
        let is_source = |span: &&str| span.ends_with(".rs") || span.starts_with("src/");
        for path in text.split('`').skip(1).step_by(2).filter(is_path).filter(is_source) {
            named += 1;
            if !names_a_source(path, &all) {
                faults.push(format!("{document} names {path}, which does not exist"));
            }
        }
    }
    assert!(named > 50 && faults.is_empty(), "{named} paths\n{}", faults.join("\n"));
}

/// A download that a broad `git add` took once stayed beside the sources for a day.
#[test]
fn foreign_entry_at_the_top_level_is_refused() {
    let expected = ".ci .gitignore CHANGELOG.md CONTRIBUTING.md Cargo.lock Cargo.toml Makefile README.md benches build.rs \
                    clippy.toml deny.toml docs images overlays rustfmt.toml site.toml src tests";
    let listed = std::process::Command::new("git")
        .args(["ls-tree", "--name-only", "HEAD"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("Cargo.toml"), "git lists the entries of the top level");
    let foreign: Vec<&str> = listed
        .lines()
        .filter(|name| !expected.split_whitespace().any(|known| known == *name))
        .collect();
    assert!(foreign.is_empty(), "at the top level: {foreign:?}");
}
