//! Links between documents: their files and headings exist.

use super::folders::documents;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The name of a heading in a link, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Lines outside of fenced blocks. Commands there begin with `#` as headings do.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_fence = false;
    text.lines().filter(move |line| {
        let is_mark = line.starts_with("```");
        in_fence ^= is_mark;
        !in_fence && !is_mark
    })
}

fn anchors(text: &str) -> BTreeSet<String> {
    let lines = prose(text).filter(|line| line.starts_with('#'));
    lines.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')).map(anchor).collect()
}

/// Targets of links in a text: `file`, `file#anchor` or `#anchor`.
fn targets(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|target| !target.contains("://") && !target.contains(' ')).collect()
}

#[test]
fn link_in_a_document_leads_to_a_file_and_heading() {
    let decisions = fs::read_dir("docs/adr").unwrap().map(|entry| entry.unwrap().path());
    let texts: BTreeMap<PathBuf, String> = documents()
        .into_iter()
        .map(PathBuf::from)
        .chain(decisions)
        .map(|path| (fs::canonicalize(&path).unwrap(), fs::read_to_string(&path).unwrap()))
        .collect();
    let mut faults = Vec::new();
    let mut links = 0;
    for (document, text) in &texts {
        for target in targets(text) {
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = document.parent().unwrap_or(Path::new("."));
            let found = fs::canonicalize(if file.is_empty() {
                document.clone()
            } else {
                folder.join(file)
            });
            let is_there = found.is_ok_and(|found| {
                let named = texts.get(&found).map(|text| anchors(text));
                heading.is_empty() || named.is_none_or(|named| named.contains(heading))
            });
            if !is_there {
                faults.push(format!("{} leads to {target}", document.display()));
            }
        }
    }
    assert!(links > 150 && faults.is_empty(), "{links} links\n{}", faults.join("\n"));
}
