//! `overlay.toml`: what plain files cannot say. Every key is checked, and an unknown one is a fault.

use super::{AGENT_PATH, Entry, Fault, Faults, MAX_ENTRIES, MAX_MANIFEST, Runlevel, Source, is_plain_name};
use crate::id::SafePath;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::Path,
};
use toml_edit::{Item, Key, TableLike};

type Entries = BTreeMap<SafePath, Entry>;

/// What the manifest declares beside the entries that it changes.
#[derive(Default)]
pub(super) struct Declared {
    pub(super) description: String,
    pub(super) services: BTreeMap<Runlevel, BTreeSet<String>>,
    pub(super) packages: BTreeSet<String>,
    pub(super) modules: Vec<String>,
}

struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
    faults: &'a mut Faults,
}

/// Reads the manifest, and puts modes, owners, links and folders into `entries`.
pub(super) fn read(file: &Path, entries: &mut Entries, faults: &mut Faults) -> Declared {
    let text = match fs::metadata(file)
        .and_then(|metadata| if metadata.len() > MAX_MANIFEST { Ok(None) } else { fs::read_to_string(file).map(Some) })
    {
        Ok(Some(text)) => text,
        Ok(None) => {
            let what = format!("is larger than {MAX_MANIFEST} bytes");
            faults.push(Fault::new(file, what, "files belong into rootfs/"));
            return Declared::default();
        }
        Err(error) => {
            let hint = "every overlay has one, with at least: description = \"what it is for\"";
            faults.push(Fault::new(file, format!("cannot be read: {error}"), hint));
            return Declared::default();
        }
    };
    let mut reader = Reader { file, text: &text, faults };
    match toml_edit::Document::parse(text.as_str()) {
        Ok(document) => reader.document(document.as_table(), entries),
        Err(error) => {
            reader.fault(error.span(), error.message().trim(), "write it as TOML");
            Declared::default()
        }
    }
}

impl Reader<'_> {
    fn fault(&mut self, span: Option<Range<usize>>, what: impl Into<String>, hint: impl Into<String>) {
        let before = span.and_then(|span| self.text.get(..span.start));
        let line = before.map(|before| before.matches('\n').count() + 1);
        self.faults.push(Fault { line, ..Fault::new(self.file, what, hint) });
    }

    fn unknown(&mut self, key: &Key, known: &str) {
        self.fault(key.span(), format!("unknown key `{}`", key.get()), format!("known here: {known}"));
    }

    fn document(&mut self, table: &dyn TableLike, entries: &mut Entries) -> Declared {
        let mut declared = Declared::default();
        if !table.contains_key("description") {
            self.fault(Some(0..0), "has no description", "add: description = \"what it is for, in a line\"");
        }
        for (key, item) in pairs(table) {
            match key.get() {
                "description" => declared.description = self.text(key, item).unwrap_or_default().to_owned(),
                "packages" => declared.packages = self.names(key, item).into_iter().collect(),
                "modules" => declared.modules = self.names(key, item),
                "services" => declared.services = self.services(key, item),
                "files" => self.each_path(key, item, |reader, path, key, item| reader.file(path, key, item, entries)),
                "directories" => {
                    self.each_path(key, item, |reader, path, key, item| reader.directory(path, key, item, entries));
                }
                "links" => self.each_path(key, item, |reader, path, key, item| reader.link(path, key, item, entries)),
                _ => self.unknown(key, "description, packages, modules, services, files, directories, links"),
            }
        }
        if entries.len() > MAX_ENTRIES {
            self.fault(None, format!("more than {MAX_ENTRIES} entries"), "bring software as packages");
        }
        declared
    }

    fn text<'a>(&mut self, key: &Key, item: &'a Item) -> Option<&'a str> {
        let text = item.as_str().filter(|text| !text.is_empty() && !text.chars().any(char::is_control));
        if text.is_none() {
            self.fault(key.span(), format!("`{}` is not a line of text", key.get()), "write it in quotes");
        }
        text
    }

    fn names(&mut self, key: &Key, item: &Item) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let Some(array) = item.as_array() else {
            self.fault(key.span(), format!("`{}` is not a list", key.get()), "write it as [\"a\", \"b\"]");
            return names;
        };
        for value in array {
            match value.as_str() {
                Some(name) if names.iter().any(|other| other == name) => {
                    self.fault(value.span(), format!("`{name}` is here twice"), "remove one of the two");
                }
                Some(name) if is_plain_name(name) => names.push(name.to_owned()),
                _ => {
                    let what = format!("{} is not a name", value.to_string().trim());
                    self.fault(value.span(), what, "write letters, digits, `+`, `.`, `_`, `-` in quotes, no version");
                }
            }
        }
        names
    }

    fn services(&mut self, key: &Key, item: &Item) -> BTreeMap<Runlevel, BTreeSet<String>> {
        let mut services = BTreeMap::new();
        for (key, item) in self.table(key, item).into_iter().flat_map(pairs) {
            match Runlevel::ALL.into_iter().find(|level| level.as_str() == key.get()) {
                Some(level) => {
                    services.insert(level, self.names(key, item).into_iter().collect());
                }
                None => self.unknown(key, "sysinit, boot, default, shutdown"),
            }
        }
        services
    }

    fn table<'a>(&mut self, key: &Key, item: &'a Item) -> Option<&'a dyn TableLike> {
        let table = item.as_table_like();
        if table.is_none() {
            self.fault(key.span(), format!("`{}` is not a table", key.get()), "see docs/overlays.md");
        }
        table
    }

    /// Calls `read` for every path of a table.
    fn each_path(&mut self, key: &Key, item: &Item, mut read: impl FnMut(&mut Self, SafePath, &Key, &Item)) {
        const HINT: &str = "write the path as the node sees it, such as \"/etc/motd\"";
        for (key, item) in self.table(key, item).into_iter().flat_map(pairs) {
            match SafePath::new(key.get()) {
                Ok(path) if key.get().starts_with('/') => read(self, path, key, item),
                Ok(_) => self.fault(key.span(), format!("`{}` does not begin with `/`", key.get()), HINT),
                Err(error) => self.fault(key.span(), error.to_string(), HINT),
            }
        }
    }

    fn file(&mut self, path: SafePath, key: &Key, item: &Item, entries: &mut Entries) {
        let Some(table) = self.table(key, item) else { return };
        if table.get("source").and_then(Item::as_str) == Some("agent") {
            if path.to_string() != AGENT_PATH {
                let what = format!("the agent lies at {AGENT_PATH}, not at {path}");
                return self.fault(key.span(), what, "use that path, and a link if it is wanted elsewhere too");
            }
            entries.insert(path.clone(), Entry { source: Source::Agent, mode: 0o755, owner: (0, 0) });
        }
        let Some(entry) = entries.get_mut(&path) else {
            let hint = format!("add rootfs{path}, or rootfs{path}.j2 for a template");
            return self.fault(key.span(), format!("there is no file {path} in rootfs/"), hint);
        };
        for (key, item) in pairs(table) {
            match (key.get(), &mut entry.source) {
                ("source", Source::Agent) => {}
                ("source", _) => self.fault(key.span(), "unknown source", "write source = \"agent\", or leave it out"),
                // The agent is packed once for all nodes.
                ("mode" | "owner", Source::Agent) => {
                    self.fault(key.span(), "the agent is 0755 and root's", "leave it out");
                }
                ("mode", _) => self.mode(key, item, &mut entry.mode),
                ("owner", _) => self.owner(key, item, &mut entry.owner),
                ("omit_empty", Source::Template { omit_empty, .. }) => match item.as_bool() {
                    Some(wanted) => *omit_empty = wanted,
                    None => self.fault(key.span(), "`omit_empty` is not true or false", "write omit_empty = true"),
                },
                ("omit_empty", _) => self.fault(key.span(), "only a template can turn out empty", "leave it out"),
                _ => self.unknown(key, "mode, owner, omit_empty, source"),
            }
        }
    }

    fn directory(&mut self, path: SafePath, key: &Key, item: &Item, entries: &mut Entries) {
        let mut entry = Entry { source: Source::Directory, mode: 0o755, owner: (0, 0) };
        for (key, item) in self.table(key, item).into_iter().flat_map(pairs) {
            match key.get() {
                "mode" => self.mode(key, item, &mut entry.mode),
                "owner" => self.owner(key, item, &mut entry.owner),
                _ => self.unknown(key, "mode, owner"),
            }
        }
        self.insert_new(path, key, entry, entries);
    }

    fn link(&mut self, path: SafePath, key: &Key, item: &Item, entries: &mut Entries) {
        if let Some(target) = self.text(key, item) {
            let entry = Entry { source: Source::Link(target.to_owned()), mode: 0o777, owner: (0, 0) };
            self.insert_new(path, key, entry, entries);
        }
    }

    fn insert_new(&mut self, path: SafePath, key: &Key, entry: Entry, entries: &mut Entries) {
        if entries.contains_key(&path) {
            return self.fault(key.span(), format!("{path} is in this overlay already"), "remove one of the two");
        }
        entries.insert(path, entry);
    }

    fn mode(&mut self, key: &Key, item: &Item, mode: &mut u32) {
        let text = item.as_str().filter(|text| text.len() == 4);
        match text.and_then(|text| u32::from_str_radix(text, 8).ok()) {
            Some(read) => *mode = read,
            None => self.fault(key.span(), "`mode` is not four octal digits in quotes", "write mode = \"0600\""),
        }
    }

    fn owner(&mut self, key: &Key, item: &Item, owner: &mut (u64, u64)) {
        let numbers = item.as_str().and_then(|text| text.split_once(':'));
        let numbers = numbers.and_then(|(user, group)| Some((user.parse::<u16>().ok()?, group.parse::<u16>().ok()?)));
        match numbers {
            Some((user, group)) => *owner = (user.into(), group.into()),
            None => {
                let hint = "write numbers, owner = \"65534:65534\": names may differ between images";
                self.fault(key.span(), "`owner` is not user and group number", hint);
            }
        }
    }
}

/// Keys with their places, in the order written.
fn pairs(table: &dyn TableLike) -> impl Iterator<Item = (&Key, &Item)> {
    table.iter().filter_map(|(name, _)| table.get_key_value(name))
}
