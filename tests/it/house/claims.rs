//! Every claim of docs/security.md and every defence has a test.

use super::{code, sources, walk};
use std::{collections::BTreeMap, fs, path::Path};

#[test]
fn security_document_claims_and_attack_tests_match() {
    let mut found = BTreeMap::new();
    for folder in ["tests", "src"] {
        walk(Path::new(folder), &mut found);
    }
    let tests = |under: &str| {
        let files = found.iter().filter(|(path, _)| path.starts_with(under));
        let lines = files.flat_map(|(_, text)| {
            text.split("#[test]\n").skip(1).chain(text.split("#[tokio::test]\n").skip(1))
        });
        let names = lines.filter_map(|rest| rest.split("fn ").nth(1)?.split('(').next());
        names.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let all = tests("");
    let attacks = tests("tests/attack");
    let text = fs::read_to_string("docs/security.md").unwrap();
    let mut faults = Vec::new();
    let mut claims = 0;
    let tables =
        text.split("shown by |\n").skip(1).map(|table| table.split("\n\n").next().unwrap_or(table));
    for row in tables.flat_map(|table| table.lines().skip(1)) {
        let shown = row.trim_end_matches(" |").rsplit("| ").next().unwrap_or_default();
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        claims += 1;
        if named.is_empty() || named.iter().any(|name| !all.contains(*name)) {
            faults.push(format!("no such test: {row}"));
        }
    }
    assert!(claims > 20, "the tables were found");
    faults.extend(
        attacks
            .iter()
            .filter(|name| !text.contains(&format!("`{name}`")))
            .map(|name| format!("not claimed: {name}")),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// True if the file is the one of that module of the target. A `tests` module may be a file, a
/// folder or a part of the file that it tests.
fn holds_module(file: &Path, target: &str, module: &str) -> bool {
    let file = file.with_extension("");
    let folders = file.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let folders: Vec<String> =
        folders.map(|part| part.trim_end_matches("_tests").to_owned()).collect();
    let significant = |part: &&str| !["tests", "mod", "lib"].contains(part);
    let folders: Vec<&str> = folders.iter().map(String::as_str).filter(significant).collect();
    let module: Vec<&str> = module
        .split("::")
        .map(|part| part.trim_end_matches("_tests"))
        .filter(significant)
        .collect();
    match target.strip_prefix("meshd") {
        // A crate is the folder with its name; the package `meshd` is all of `src`.
        Some(name) => {
            let root = ["src", name.trim_start_matches('-')];
            let root = &root[..if name.is_empty() { 1 } else { 2 }];
            folders.strip_prefix(root) == Some(&module[..])
        }
        None => folders.ends_with(&module),
    }
}

/// Every defence that a test can disable has an attack test, and every line of the list names a
/// defence and a test that exist.
#[test]
fn defence_has_a_test_that_runs_without_it() {
    let mut named = std::collections::BTreeSet::new();
    for text in sources().values() {
        let flat: String = code(text).collect();
        named.extend(flat.match_indices("defends(\"").map(|(at, start)| {
            let rest = &flat[at + start.len()..];
            rest.split('"').next().unwrap_or_default().to_owned()
        }));
    }
    let list = fs::read_to_string("tests/attack/defences").unwrap();
    let mut tests = BTreeMap::new();
    ["tests", "src"].iter().for_each(|folder| walk(Path::new(folder), &mut tests));
    let mut faults = Vec::new();
    let mut listed = std::collections::BTreeSet::new();
    for line in
        list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [defence, target, test] = words[..] else {
            faults.push(format!("not `defence target test`: {line}"));
            continue;
        };
        listed.insert(defence.to_owned());
        let (module, name) = test.rsplit_once("::").unwrap();
        let function = format!("fn {name}(");
        if !(["integration", "e2e"].contains(&target) || target.starts_with("meshd"))
            || !tests
                .iter()
                .any(|(path, text)| text.contains(&function) && holds_module(path, target, module))
        {
            faults.push(format!("no such test: {line}"));
        }
    }
    faults.extend(
        named.difference(&listed).map(|name| format!("{name} is not in tests/attack/defences")),
    );
    faults.extend(listed.difference(&named).map(|name| format!("{name} is not a defence of src/")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
