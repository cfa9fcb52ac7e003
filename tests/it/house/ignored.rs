//! Ignored tests: each is run by a make target.

use super::walk;
use std::{collections::BTreeMap, fs, path::Path};

/// The module of a test file: its stem, or the folder of a `mod.rs`.
fn module(path: &Path) -> &str {
    let named = if path.ends_with("mod.rs") { path.parent().unwrap() } else { path };
    named.file_stem().unwrap().to_str().unwrap()
}

/// Returns true if a target of the Makefile runs the ignored tests of the module.
fn is_run(makefile: &str, module: &str) -> bool {
    let commands = makefile.replace("\\\n", " ");
    commands.lines().any(|line| line.starts_with('\t') && line.contains("--ignored") && line.contains(module))
}

#[test]
fn ignored_test_is_run_by_a_make_target() {
    let makefile = fs::read_to_string("Makefile").unwrap();
    assert!(!is_run(&makefile, "no_such_module") && !is_run("\tcargo test storm", "storm"));
    let attribute = concat!("#[", "ignore");
    let mut files = BTreeMap::new();
    ["src", "tests", "benches"].into_iter().for_each(|folder| walk(Path::new(folder), &mut files));
    files.retain(|_, text| text.contains(attribute));
    assert!(!files.is_empty(), "there are ignored tests");
    let orphans: Vec<_> = files.into_keys().filter(|path| !is_run(&makefile, module(path))).collect();
    assert!(orphans.is_empty(), "no make target runs the ignored tests of {orphans:?}");
}
