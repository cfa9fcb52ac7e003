//! `[files]`, `[directories]`, `[links]` and `[append]` of `overlay.toml`.

use super::entry::{AGENT_PATH, Entries, OverlayEntry, Source, SourceLocation};
use bytes::Bytes;
use meshd_config::reader::{Document, Located, Table, brief};
use meshd_types::SafePath;

pub(super) const MANIFEST: &str = "overlay.toml";

/// Applies the sections to the entries.
pub(super) fn read(document: &Document, root: &Table<'_>, entries: &mut Entries) {
    for entry in root.entries_of("files") {
        if let Some(path) = path(document, &entry.name) {
            file(document, &entry.table, &entry.name, path, entries);
        }
    }
    for entry in root.entries_of("directories") {
        let mode = mode(document, &entry.table);
        let owner = owner(document, &entry.table);
        let replace = flag(&entry.table, "replace");
        if let Some(path) = path(document, &entry.name) {
            let location = location(&entry.name);
            let mode = mode.unwrap_or(0o755);
            let owner = owner.unwrap_or_default();
            let directory = OverlayEntry {
                source: Source::Directory,
                mode,
                owner,
                append: false,
                replace,
                system: None,
                location,
            };
            // An empty folder of rootfs/ that is declared, too.
            if entries
                .get(&path)
                .is_some_and(|it| it.source == Source::Directory && it.location.file != MANIFEST)
            {
                entries.remove(&path);
            }
            insert_new(document, &entry.name, path, directory, entries);
        }
    }
    if let Some(table) = root.table("links") {
        for key in table.keys() {
            let target = table.word(&key);
            if let (Some(path), Some(target)) = (path(document, &key), target) {
                if target.chars().any(char::is_control) {
                    document.fault(&target, "is not the target of a link", "write a plain path");
                }
                let link = OverlayEntry {
                    mode: 0o777,
                    ..plain(Source::Link(target.value), location(&key))
                };
                insert_new(document, &key, path, link, entries);
            }
        }
    }
    if let Some(table) = root.table("append") {
        for key in table.keys() {
            let lines: String =
                table.strings(&key).into_iter().map(|line| line.value + "\n").collect();
            if let Some(path) = path(document, &key) {
                let added = OverlayEntry {
                    append: true,
                    ..plain(Source::File(Bytes::from(lines)), location(&key))
                };
                insert_new(document, &key, path, added, entries);
            }
        }
    }
}

/// Parses an absolute path on the node.
pub(super) fn path(document: &Document, text: &Located<String>) -> Option<SafePath> {
    const HINT: &str = "write the path as the node sees it, such as \"/etc/motd\"";
    match SafePath::new(text) {
        Ok(path) if text.starts_with('/') => Some(path),
        Ok(_) => {
            document.fault(text, format!("`{}` does not begin with `/`", brief(text)), HINT);
            None
        }
        Err(error) => {
            document.fault(text, error.to_string(), HINT);
            None
        }
    }
}

fn location(at: &Located<String>) -> SourceLocation {
    SourceLocation { file: MANIFEST.to_owned(), line: at.line }
}

fn plain(source: Source, location: SourceLocation) -> OverlayEntry {
    OverlayEntry {
        source,
        mode: 0o644,
        owner: (0, 0),
        append: false,
        replace: false,
        system: None,
        location,
    }
}

fn file(
    document: &Document,
    table: &Table<'_>,
    at: &Located<String>,
    path: SafePath,
    entries: &mut Entries,
) {
    let agent = table.choice("source", &[("agent", ())]).is_some();
    let mode = mode(document, table);
    let owner = owner(document, table);
    let append = flag(table, "append");
    let replace = flag(table, "replace");
    let omit_empty = flag(table, "omit_empty");
    if agent {
        if path.to_string() != AGENT_PATH {
            let hint = "use that path, and a link if it is wanted elsewhere too";
            return document.fault(
                at,
                format!("the agent lies at {AGENT_PATH}, not at {path}"),
                hint,
            );
        }
        // These keys are refused, because the agent is packed once for all nodes.
        for key in
            ["mode", "owner", "append", "omit_empty"].into_iter().filter(|key| table.has(key))
        {
            table.fault(key, "the agent is 0755 and root's", "leave it out");
        }
        entries.insert(path, OverlayEntry { mode: 0o755, ..plain(Source::Agent, location(at)) });
        return;
    }
    let Some(entry) = entries.get_mut(&path) else {
        let hint = format!("add rootfs{path}, or rootfs{path}.j2 for a template");
        return document.fault(at, format!("there is no file {path} in rootfs/"), hint);
    };
    if append && (table.has("mode") || table.has("owner")) {
        table.fault(
            "append",
            "what is appended has the mode and owner of the file",
            "remove `mode` and `owner`",
        );
    }
    match &mut entry.source {
        Source::Template { omit_empty: declared, .. } => *declared = omit_empty,
        _ if table.has("omit_empty") => {
            table.fault("omit_empty", "only a template can turn out empty", "leave it out")
        }
        Source::Link(_) => {
            document.fault(at, "is a link, which has neither mode nor owner", "leave it out")
        }
        _ => {}
    }
    entry.mode = mode.unwrap_or(entry.mode);
    entry.owner = owner.unwrap_or(entry.owner);
    (entry.append, entry.replace) = (append, replace);
    entry.location.line = at.line;
    entry.location.file = MANIFEST.to_owned();
}

fn insert_new(
    document: &Document,
    at: &Located<String>,
    path: SafePath,
    entry: OverlayEntry,
    entries: &mut Entries,
) {
    if entries.contains_key(&path) {
        return document.fault(
            at,
            format!("{path} is in this overlay already"),
            "remove one of the two",
        );
    }
    entries.insert(path, entry);
}

fn flag(table: &Table<'_>, key: &str) -> bool {
    table.bool(key).is_some_and(|flag| flag.value)
}

fn mode(document: &Document, table: &Table<'_>) -> Option<u32> {
    const HINT: &str = "write mode = \"0600\"";
    let text = table.string("mode")?;
    let octal = text.len() == 4 && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    if !octal {
        document.fault(&text, "is not four octal digits in quotes", HINT);
    }
    u32::from_str_radix(&text, 8).ok().filter(|_| octal)
}

fn owner(document: &Document, table: &Table<'_>) -> Option<(u64, u64)> {
    let text = table.string("owner")?;
    let numbers = text.split_once(':').and_then(|(user, group)| {
        let number = |text: &str| text.parse::<u16>().ok().map(u64::from);
        Some((number(user)?, number(group)?))
    });
    if numbers.is_none() {
        let hint = "write numbers, owner = \"65534:65534\": names may differ between images";
        document.fault(&text, "is not user and group number", hint);
    }
    numbers
}
