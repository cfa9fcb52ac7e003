//! Rules that the sources keep.
//!
//! | module | what it checks |
//! | --- | --- |
//! | [`file_cycles`] | import cycles between files |
//! | [`crates`] | which crate depends on which, and which package is named where |
//! | [`parameters`] | tuple patterns hide no parameters |
//! | [`paths`] | imports between folders, and pure code |
//! | [`claims`] | docs/security.md and the list of defences name tests that exist |
//! | [`folders`] | size and map of folders, and paths in documents |
//! | [`ignored`] | no test is ignored |
//! | [`links`] | links between documents |
//! | [`language`] | type names, doc comments, phrases |
//! | [`output`] | commands print only through the writer of `src/cli/output` |
//! | here | how a file begins, how long it is, what its texts look like |

mod file_cycles;
mod claims;
mod crates;
mod folders;
mod ignored;
mod language;
mod links;
mod output;
mod parameters;
mod paths;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn sources() -> BTreeMap<PathBuf, String> {
    programs("src")
}

/// The Rust files below a folder, with their text.
fn programs(folder: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    walk(Path::new(folder), &mut found);
    assert!(!found.is_empty(), "the files below {folder} were found");
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

/// Whether a file holds tests only.
fn is_tests(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.ends_with("tests.rs") || text.contains("/tests/")
}

/// Lines of code: without comments, and without the test module that ends a file.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let body = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    body.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn file_has_a_header_and_at_most_500_lines() {
    let mut faults = Vec::new();
    for (path, text) in sources().into_iter().chain(programs("tests")).chain(programs("benches")) {
        if !text.starts_with("//!") {
            faults.push(format!("{} does not open with //!", path.display()));
        }
        if text.lines().count() > 500 {
            faults.push(format!("{} has more than 500 lines", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn metric_has_a_help_text() {
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

/// String literals in code, each with the line on which it begins. Continuations (`\\` at the end
/// of a line) are joined as rustc joins them; raw strings are text to look at, such as templates,
/// and left out.
fn literals(text: &str) -> Vec<(usize, String)> {
    let body = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = body.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        match c {
            '\n' => line += 1,
            '/' if body[at..].starts_with("//") => {
                while rest.next_if(|(_, c)| *c != '\n').is_some() {}
            }
            '\'' if body[at..].starts_with("'\"'") => drop(rest.nth(1)),
            'r' if body[at..].starts_with("r\"") || body[at..].starts_with("r#\"") => {
                let end = if body[at..].starts_with("r#") { "\"#" } else { "\"" };
                let begin = at + end.len() + 1;
                let length = body[begin..].find(end).unwrap_or(0);
                line += body[at..begin + length].matches('\n').count();
                while rest.next_if(|(place, _)| *place < begin + length + end.len()).is_some() {}
            }
            '"' => {
                let start = line;
                let mut literal = String::new();
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

/// A run of spaces within a sentence: most often a line that was joined by hand, with its
/// indentation. What begins or ends with spaces is laid out on purpose, and so is a line of a
/// table.
#[test]
fn sentence_for_people_has_no_run_of_spaces() {
    let joined =
        literals("let a = \"one \\\n      two\"; let b = \"three    four\"; // \"five     six\"");
    assert_eq!(joined, [(1, "one two".to_owned()), (2, "three    four".to_owned())]);
    let mut faults = Vec::new();
    for (path, text) in sources() {
        for (line, literal) in literals(&text) {
            // Neither a file nor a list of commands that is laid out.
            let is_laid_out =
                literal.contains("\\n") || literal.contains('\n') || literal.starts_with("meshd ");
            let is_sentence = literal.split_whitespace().count() > 4 && !is_laid_out;
            if is_sentence && literal.trim().contains("   ") {
                faults.push(format!("{}:{line}: {literal}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
