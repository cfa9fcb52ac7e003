//! Holds the rules of the house: which module may use which, which package lives where, how a file opens.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The level of each module: it uses only what stands on a lower one.
const LEVELS: [(&str, u32); 19] = [
    ("fail", 0),
    ("id", 0),
    ("wire", 1),
    ("config", 2),
    ("fleet", 3),
    ("trust", 3),
    ("work", 3),
    ("catalog", 4),
    ("store", 4),
    ("boot", 5),
    ("overlay", 6),
    ("image", 6),
    ("backup", 7),
    ("serve", 8),
    ("daemon", 9),
    ("agent", 10),
    ("lab", 11),
    ("cli", 12),
    ("bin", 13),
];

/// Where a package may be named.
const HOMES: [(&str, &[&str]); 9] = [
    ("netlink_", &["src/serve/lan/neighbour.rs"]),
    ("dhcproto::", &["src/serve/dhcp/"]),
    ("axum::", &["src/serve/"]),
    (
        "nix::",
        &[
            "src/serve/tftp/",
            "src/serve/lan/",
            "src/serve/dhcp/frames.rs",
            "src/serve/bind.rs",
            "src/config/interfaces.rs",
            "src/daemon/privileges.rs",
        ],
    ),
    ("utoipa::", &["src/serve/admin/"]),
    ("flate2::", &["src/overlay/archive", "src/image/apk/members.rs"]),
    ("tar::", &["src/overlay/archive", "src/image/apk/members.rs"]),
    ("clap::", &["src/cli/", "src/bin/", "src/agent/cli"]),
    ("vfio_ioctls::", &["src/agent/units/take.rs"]),
];

/// Modules, or parts of them, that take time, randomness and I/O as arguments.
const PURE: [&str; 19] = [
    "src/id/",
    "src/wire/",
    "src/fleet/",
    "src/work/",
    "src/boot/",
    "src/overlay/context.rs",
    "src/overlay/merge.rs",
    "src/overlay/plan.rs",
    "src/overlay/rendered.rs",
    "src/overlay/secret.rs",
    "src/overlay/values.rs",
    "src/trust/capability.rs",
    "src/agent/machine",
    "src/agent/vm/argv.rs",
    "src/agent/vm/machine.rs",
    "src/agent/vm/plan.rs",
    "src/agent/vm/qcow2.rs",
    "src/agent/vm/qmp.rs",
    "src/agent/vm/seed.rs",
];
const IMPURE: [&str; 6] = ["tokio::", "std::fs", "std::net::Tcp", "SystemTime::now", "Instant::now", "getrandom::"];

fn sources() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    walk(Path::new("src"), &mut found);
    assert!(found.len() > 50, "the sources were found");
    found
}

fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.insert(path, text);
        }
    }
}

fn module_of(path: &Path) -> String {
    let second = path.components().nth(1).unwrap().as_os_str().to_string_lossy().into_owned();
    second.trim_end_matches(".rs").to_owned()
}

/// Lines of code: without comments, and without the test module that ends a file.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let body = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    body.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// Modules that a file names as `crate::module`, also within `use crate::{...}` groups.
fn used_modules(text: &str) -> Vec<String> {
    let flat: String = code(text).collect::<Vec<_>>().join(" ");
    let mut used = Vec::new();
    for (at, _) in flat.match_indices("crate::") {
        let rest = &flat[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => used.push(word(rest)),
            Some(group) => used.extend(top_level_items(group)),
        }
    }
    used
}

fn top_level_items(group: &str) -> Vec<String> {
    let (mut depth, mut items, mut item) = (0u32, Vec::new(), String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    items.push(item);
    items.iter().map(|item| word(item.trim())).filter(|word| !word.is_empty()).collect()
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn a_module_uses_only_what_stands_above_it_in_the_chain() {
    let levels = BTreeMap::from(LEVELS);
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let module = module_of(&path);
        let Some(level) = levels.get(module.as_str()) else { continue };
        for used in used_modules(&text) {
            let Some(used_level) = levels.get(used.as_str()) else { continue };
            let agent_rule = module == "agent" && *used_level > 1;
            let is_itself = used == module;
            if !is_itself && (used_level >= level || agent_rule) {
                faults.push(format!("{} uses crate::{used}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn servers_do_not_know_each_other() {
    let servers = ["dhcp", "tftp", "http", "agent", "admin"];
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let Ok(inside) = path.strip_prefix("src/serve") else { continue };
        let own = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        let line = code(&text).collect::<Vec<_>>().join(" ");
        for other in servers.iter().filter(|other| **other != own && own != "mod.rs") {
            if line.contains(&format!("serve::{other}::")) {
                faults.push(format!("{} uses serve::{other}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn each_package_has_one_home() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let shown = path.display().to_string();
        if shown.contains("tests") {
            continue;
        }
        for (package, homes) in HOMES {
            let at_home = homes.iter().any(|home| shown.starts_with(home));
            let named = code(&text).any(|line| {
                line.match_indices(package)
                    .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c)))
            });
            if named && !at_home {
                faults.push(format!("{shown} names {package}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pure_modules_take_time_randomness_and_files_as_arguments() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let shown = path.display().to_string();
        if !PURE.iter().any(|pure| shown.starts_with(pure)) || shown.ends_with("tests.rs") {
            continue;
        }
        for impure in IMPURE {
            if code(&text).any(|line| line.contains(impure)) {
                faults.push(format!("{shown} uses {impure}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn each_file_says_what_it_is_for_and_is_one_room() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        if !text.starts_with("//!") {
            faults.push(format!("{} does not open with //!", path.display()));
        }
        if text.lines().count() > 400 {
            faults.push(format!("{} has more than 400 lines", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn each_metric_says_what_it_is() {
    let described = fs::read_to_string("src/serve/metrics/describe.rs").unwrap();
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let flat: String = code(&text).collect();
        for (at, _) in flat.match_indices("!(\"meshd_") {
            let name = word(&flat[at + 3..]);
            if !described.contains(&format!("\"{name}\"")) {
                faults.push(format!("{} counts {name}, which has no help", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn each_claim_of_the_security_document_names_a_test_and_each_attack_is_named() {
    let mut found = BTreeMap::new();
    for folder in ["tests", "src"] {
        walk(Path::new(folder), &mut found);
    }
    let tests = |under: &str| {
        let files = found.iter().filter(|(path, _)| path.starts_with(under));
        let lines =
            files.flat_map(|(_, text)| text.split("#[test]\n").skip(1).chain(text.split("#[tokio::test]\n").skip(1)));
        let names = lines.filter_map(|rest| rest.split("fn ").nth(1)?.split('(').next());
        names.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let (all, attacks) = (tests(""), tests("tests/attack"));
    let text = fs::read_to_string("docs/security.md").unwrap();
    let mut faults = Vec::new();
    let mut claims = 0;
    let tables = text.split("shown by |\n").skip(1).map(|table| table.split("\n\n").next().unwrap_or(table));
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
        attacks.iter().filter(|name| !text.contains(&format!("`{name}`"))).map(|name| format!("not claimed: {name}")),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every defence that a test can disable has an attack test, and every line of the list names a defence and a test that exist.
#[test]
fn every_defence_has_a_test_that_runs_without_it() {
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
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [defence, target, test] = words[..] else {
            faults.push(format!("not `defence target test`: {line}"));
            continue;
        };
        listed.insert(defence.to_owned());
        let function = format!("fn {}(", test.rsplit("::").next().unwrap());
        if !["lib", "integration", "e2e"].contains(&target) || !tests.values().any(|text| text.contains(&function)) {
            faults.push(format!("no such test: {line}"));
        }
    }
    faults.extend(named.difference(&listed).map(|name| format!("{name} is not in tests/attack/defences")));
    faults.extend(listed.difference(&named).map(|name| format!("{name} is not a defence of src/")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// String literals in code, each with the line on which it begins. Continuations (`\\` at the end of a line) are joined as rustc
/// joins them; raw strings are text to look at, such as templates, and left out.
fn literals(text: &str) -> Vec<(usize, String)> {
    let body = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let (mut found, mut line) = (Vec::new(), 1);
    let mut rest = body.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        match c {
            '\n' => line += 1,
            '/' if body[at..].starts_with("//") => while rest.next_if(|(_, c)| *c != '\n').is_some() {},
            '\'' if body[at..].starts_with("'\"'") => drop(rest.nth(1)),
            'r' if body[at..].starts_with("r\"") || body[at..].starts_with("r#\"") => {
                let end = if body[at..].starts_with("r#") { "\"#" } else { "\"" };
                let begin = at + end.len() + 1;
                let length = body[begin..].find(end).unwrap_or(0);
                line += body[at..begin + length].matches('\n').count();
                while rest.next_if(|(place, _)| *place < begin + length + end.len()).is_some() {}
            }
            '"' => {
                let (start, mut literal) = (line, String::new());
                while let Some((_, c)) = rest.next() {
                    match c {
                        '"' => break,
                        '\\' => match rest.next() {
                            Some((_, '\n')) => {
                                line += 1;
                                while let Some((_, c)) = rest.next_if(|(_, c)| c.is_whitespace()) {
                                    line += usize::from(c == '\n');
                                }
                            }
                            Some((_, c)) => literal.extend(['\\', c]),
                            None => break,
                        },
                        c => {
                            line += usize::from(c == '\n');
                            literal.push(c);
                        }
                    }
                }
                found.push((start, literal));
            }
            _ => {}
        }
    }
    found
}

/// A run of spaces within a sentence: most often a line that was joined by hand, with its indentation. What begins or ends with spaces
/// is laid out on purpose, and so is a line of a table.
#[test]
fn sentence_for_people_has_no_run_of_spaces() {
    let joined = literals("let a = \"one \\\n      two\"; let b = \"three    four\"; // \"five     six\"");
    assert_eq!(joined, [(1, "one two".to_owned()), (2, "three    four".to_owned())]);
    let mut faults = Vec::new();
    for (path, text) in sources() {
        for (line, literal) in literals(&text) {
            // Neither a file nor a list of commands that is laid out.
            let is_laid_out = literal.contains("\\n") || literal.contains('\n') || literal.starts_with("meshd ");
            let is_sentence = literal.split_whitespace().count() > 4 && !is_laid_out;
            if is_sentence && literal.trim().contains("   ") {
                faults.push(format!("{}:{line}: {literal}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
