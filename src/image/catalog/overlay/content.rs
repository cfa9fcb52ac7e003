//! Finds invisible faults of files: CRLF line ends, byte order marks, tabs in YAML, names that
//! differ only by case.

use super::entry::{Entries, Source};
use meshd_config::Fault;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// UTF-8 byte order mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Folders whose files a shell reads.
const READ_BY_SHELL: [&str; 4] =
    ["/etc/init.d/", "/etc/conf.d/", "/etc/local.d/", "/etc/profile.d/"];

/// Checks every file of the overlay in `folder`.
pub(super) fn check(folder: &Path, entries: &Entries, faults: &mut Vec<Fault>) {
    for (path, entry) in entries {
        let (file, bytes, is_template) = match &entry.source {
            Source::Template { file, text, .. } => (file, text.as_bytes(), true),
            Source::File(bytes) => (&entry.location.file, &bytes[..], false),
            _ => continue,
        };
        let path = path.to_string();
        let text = is_template || READ_BY_SHELL.iter().any(|folder| path.starts_with(folder));
        if let Some((line, what, hint)) = find_fault(&path, bytes, text) {
            faults.push(Fault { line, ..Fault::of_file(folder.join(file), what, hint) });
        }
    }
    same_but_for_case(folder, entries, faults);
}

fn find_fault(path: &str, bytes: &[u8], text: bool) -> Option<(usize, &'static str, &'static str)> {
    let marked = bytes.starts_with(BYTE_ORDER_MARK);
    let is_script = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes).starts_with(b"#!");
    if marked && (is_script || text) {
        let what = "begins with a byte order mark, which the node takes for text";
        return Some((1, what, "save it as UTF-8 without BOM"));
    }
    let crlf = bytes.windows(2).position(|pair| pair == b"\r\n");
    if let Some(at) = crlf.filter(|_| is_script || text) {
        let line = lines_before(bytes, at) + 1;
        let what = if is_script && line == 1 {
            "is a script with line ends of Windows: the node looks for an interpreter whose name ends in a carriage return"
        } else {
            "has line ends of Windows (CRLF)"
        };
        return Some((line, what, "save it with line ends of Unix: sed -i 's/\\r$//' FILE"));
    }
    let is_yaml = path.ends_with(".yaml") || path.ends_with(".yml");
    let tab = is_yaml.then(|| bytes.split(|c| *c == b'\n').position(indented_by_tab)).flatten();
    tab.map(|line| {
        (line + 1, "is indented with a tab, which YAML does not allow", "indent it with spaces")
    })
}

fn indented_by_tab(line: &[u8]) -> bool {
    line.iter().take_while(|c| c.is_ascii_whitespace()).any(|c| *c == b'\t')
}

fn lines_before(bytes: &[u8], at: usize) -> usize {
    bytes[..at].iter().filter(|c| **c == b'\n').count()
}

/// Reports names that differ only by case: a case-insensitive file system would lose one of them.
fn same_but_for_case(folder: &Path, entries: &Entries, faults: &mut Vec<Fault>) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for (path, entry) in entries {
        for at in path.parents().chain([path.relative()]) {
            let other = *seen.entry(at.to_lowercase()).or_insert(at);
            if other != at {
                let what = format!("/{at} and /{other} differ only by case");
                let file: PathBuf = folder.join(&entry.location.file);
                faults.push(Fault {
                    line: entry.location.line,
                    ..Fault::of_file(file, what, "rename one of the two")
                });
                break;
            }
        }
    }
}
