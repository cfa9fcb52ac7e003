//! One TOML table: typed getters that record faults, and detection of unknown keys.

use super::{Document, Located, parse_duration, write_duration};
use crate::fault::suggest;
use meshd_types::{MAX_VAR_LIST, MAX_VAR_TEXT, ParseError, VarValue};
use std::{
    cell::RefCell, collections::BTreeSet, fmt::Display, net::Ipv4Addr, ops::RangeInclusive,
    path::PathBuf, str::FromStr, time::Duration,
};
use toml_edit::{Item, TableLike, Value};

const MAX_LIST: usize = 16_384;

/// A table or inline table. Getters return `None` if the key is absent or has a fault;
/// [`Table::required`] distinguishes them.
pub struct Table<'d> {
    document: &'d Document,
    toml: &'d dyn TableLike,
    /// Dotted path of this table; empty for the root.
    path: String,
    line: usize,
    read_keys: RefCell<BTreeSet<String>>,
    /// Keys of a later release, which no hint suggests.
    reserved_keys: RefCell<Vec<&'static str>>,
}

/// A named table inside a table, such as one profile of `[profiles]`.
pub struct NamedTable<'d> {
    pub name: Located<String>,
    pub table: Table<'d>,
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        let read_keys = self.read_keys.borrow();
        let reserved_keys = self.reserved_keys.borrow();
        let is_known = |key: &str| read_keys.contains(key) || reserved_keys.contains(&key);
        for (key, item) in self.toml.iter().filter(|(key, item)| !is_known(key) && !item.is_none())
        {
            let what = if item.is_table() || item.is_array_of_tables() { "section" } else { "key" };
            let at = self.position(key);
            self.document.fault(
                &at,
                format!("unknown {what}"),
                suggest(key, read_keys.iter().map(String::as_str)),
            );
        }
    }
}

impl<'d> Table<'d> {
    pub(super) fn new(
        document: &'d Document,
        toml: &'d dyn TableLike,
        path: String,
        line: usize,
    ) -> Self {
        Table {
            document,
            toml,
            path,
            line,
            read_keys: RefCell::default(),
            reserved_keys: RefCell::default(),
        }
    }

    /// Returns the position of a key; of the table if the key is absent.
    pub fn position(&self, key: &str) -> Located<()> {
        let written = self.toml.get_key_value(key).map(|(key, _)| self.document.line(key.span()));
        let key =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Located { value: (), line: written.filter(|line| *line > 0).unwrap_or(self.line), key }
    }

    /// Returns the position of this table.
    pub fn own_position(&self) -> Located<()> {
        Located { value: (), line: self.line, key: self.path.clone() }
    }

    /// Records a fault of a key of this table.
    pub fn fault(&self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.document.fault(&self.position(key), message, hint);
    }

    /// Records a fault at the position of a value.
    pub fn fault_at<T>(
        &self,
        position: &Located<T>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.document.fault(position, message, hint);
    }

    /// Records a fault and returns false if a list has more than `limit` elements.
    pub fn is_within(&self, key: &str, limit: usize, count: usize, elements: &str) -> bool {
        if count > limit {
            self.fault(key, format!("{count} {elements}"), format!("at most {limit}"));
        }
        count <= limit
    }

    /// Returns true if the key is present.
    pub fn has(&self, key: &str) -> bool {
        self.toml.get(key).is_some_and(|item| !item.is_none())
    }

    /// Returns the TOML type of a value: `string`, `integer`, `array`.
    pub fn kind(&self, key: &str) -> Option<&'static str> {
        self.item(key).map(Item::type_name)
    }

    /// Records a fault if the key is absent. `value` is the result of the getter, which has
    /// reported an invalid value.
    pub fn required<T>(&self, key: &str, value: Option<T>, hint: impl Into<String>) -> Option<T> {
        if value.is_none() && !self.has(key) {
            self.fault(key, "is required", hint);
        }
        value
    }

    /// Rejects a key of a later release.
    pub fn reserved(&self, key: &'static str) {
        self.reserved_keys.borrow_mut().push(key);
        if self.has(key) {
            self.fault(key, "reserved for a later release", "remove it");
        }
    }

    pub fn string(&self, key: &str) -> Option<Located<String>> {
        self.typed(key, "a text in quotes", |item| item.as_str().map(str::to_owned))
    }

    /// Returns a text that is not empty.
    pub fn word(&self, key: &str) -> Option<Located<String>> {
        self.string(key).filter(|text| {
            if text.trim().is_empty() {
                self.document.fault(text, "is empty", "write a value, or remove the key");
            }
            !text.trim().is_empty()
        })
    }

    pub fn bool(&self, key: &str) -> Option<Located<bool>> {
        self.typed(key, "true or false", Item::as_bool)
    }

    /// Returns a whole number within bounds.
    pub fn integer<N>(&self, key: &str, bounds: RangeInclusive<N>) -> Option<Located<N>>
    where
        N: Display + PartialOrd + TryFrom<i64>,
    {
        let number = self.typed(key, "a whole number", Item::as_integer)?;
        let valid = N::try_from(number.value).ok().filter(|value| bounds.contains(value));
        if valid.is_none() {
            let hint = format!("write a number from {} to {}", bounds.start(), bounds.end());
            self.document.fault(&number, format!("{} is out of range", number.value), hint);
        }
        valid.map(|value| number.with(value))
    }

    /// Returns a TCP or UDP port.
    pub fn port(&self, key: &str) -> Option<Located<u16>> {
        self.integer(key, 1..=u16::MAX)
    }

    /// Returns a duration within bounds, such as `"30s"`.
    pub fn duration(
        &self,
        key: &str,
        bounds: RangeInclusive<Duration>,
    ) -> Option<Located<Duration>> {
        let text = self.string(key)?;
        let hint = "write a whole number and a unit: \"30s\", \"15m\", \"1h\", \"7d\"";
        let Some(span) = parse_duration(&text) else {
            self.document.fault(&text, format!("`{}` is not a duration", brief(&text)), hint);
            return None;
        };
        if bounds.contains(&span) {
            return Some(text.with(span));
        }
        let least = write_duration(*bounds.start());
        let most = write_duration(*bounds.end());
        self.document.fault(
            &text,
            format!("`{}` is out of range", text.value),
            format!("from {least} to {most}"),
        );
        None
    }

    /// Parses a text. Errors of the form `message; hint` are split.
    pub fn parsed<T: FromStr<Err = ParseError>>(&self, key: &str) -> Option<Located<T>> {
        self.convert(self.string(key)?)
    }

    pub fn ipv4(&self, key: &str) -> Option<Located<Ipv4Addr>> {
        self.address(self.string(key)?)
    }

    /// Returns the value of one of several keywords.
    pub fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<Located<T>> {
        let text = self.string(key)?;
        let known = words.iter().find(|(word, _)| *word == text.value);
        if known.is_none() {
            let hint = suggest(&text, words.iter().map(|(word, _)| *word));
            self.document.fault(&text, format!("`{}` is not known", brief(&text)), hint);
        }
        known.map(|(_, value)| text.with(*value))
    }

    /// Returns a path, resolved relative to the folder of the file.
    pub fn path(&self, key: &str) -> Option<Located<PathBuf>> {
        let text = self.word(key)?;
        if text.contains('\0') {
            self.document.fault(&text, "a path has no NUL character", "write a plain path");
            return None;
        }
        if text.starts_with('~') || text.starts_with('$') {
            let what = format!("`{}`: no shell expands `~` or `$`", brief(&text));
            self.document.fault(
                &text,
                what,
                "write the path in full, or relative to the folder of this file",
            );
            return None;
        }
        let path = self.document.resolve(&text);
        Some(text.with(path))
    }

    /// Returns a list of texts; empty if absent. Elements of another type are faults.
    pub fn strings(&self, key: &str) -> Vec<Located<String>> {
        let position = self.position(key);
        let Some(array) = self.item(key).and_then(|item| {
            let array = item.as_array();
            if array.is_none() {
                self.wrong(key, item.type_name(), "a list of texts, [\"a\", \"b\"]");
            }
            array
        }) else {
            return Vec::new();
        };
        if array.len() > MAX_LIST {
            self.document.fault(
                &position,
                format!("has more than {MAX_LIST} elements"),
                "shorten it",
            );
        }
        let mut out = Vec::new();
        for (index, value) in array.iter().enumerate().take(MAX_LIST) {
            let line = Some(self.document.line(value.span()))
                .filter(|line| *line > 0)
                .unwrap_or(position.line);
            let at = Located { value: (), line, key: format!("{}[{index}]", position.key) };
            match value {
                Value::String(text) => out.push(at.with(text.value().clone())),
                other => self.wrong_at(&at, other.type_name(), "a text in quotes"),
            }
        }
        out
    }

    /// Parses a list of texts.
    pub fn list<T: FromStr<Err = ParseError>>(&self, key: &str) -> Vec<Located<T>> {
        self.strings(key).into_iter().filter_map(|text| self.convert(text)).collect()
    }

    pub fn ipv4s(&self, key: &str) -> Vec<Located<Ipv4Addr>> {
        self.strings(key).into_iter().filter_map(|text| self.address(text)).collect()
    }

    /// Returns a table inside this one.
    pub fn table(&self, key: &str) -> Option<Table<'d>> {
        let item = self.item(key)?;
        let table = item.as_table_like();
        if table.is_none() {
            let path = self.position(key).key;
            self.wrong(key, item.type_name(), &format!("a section: [{path}]"));
        }
        table.map(|table| self.inner(key, table))
    }

    /// Returns each `[[key]]`.
    pub fn tables(&self, key: &str) -> Vec<Table<'d>> {
        let Some(item) = self.item(key) else { return Vec::new() };
        let position = self.position(key);
        if let Some(array) = item.as_array_of_tables() {
            let tables = array.iter().enumerate().map(|(index, table)| {
                let path = format!("{}[{index}]", position.key);
                Table::new(self.document, table, path, self.document.line(table.span()).max(1))
            });
            return tables.collect();
        }
        let elements =
            item.as_array().map(|array| array.iter().map(Value::as_inline_table).collect());
        let Some(Some(tables)) = elements.map(|tables: Option<Vec<_>>| tables) else {
            self.wrong(key, item.type_name(), &format!("sections: [[{}]]", position.key));
            return Vec::new();
        };
        let tables = tables.into_iter().enumerate().map(|(index, table)| {
            Table::new(self.document, table, format!("{}[{index}]", position.key), position.line)
        });
        tables.collect()
    }

    /// Returns all tables in a table whose keys are names, such as `[profiles]`.
    pub fn entries(&self) -> Vec<NamedTable<'d>> {
        let keys: Vec<String> = self.toml.iter().map(|(key, _)| key.to_owned()).collect();
        let entry = |key: String| {
            let name = self.position(&key).with(key.clone());
            self.table(&key).map(|table| NamedTable { name, table })
        };
        keys.into_iter().filter_map(entry).collect()
    }

    /// Returns all tables of a section whose keys are names; none if the section is absent.
    pub fn entries_of(&self, section: &str) -> Vec<NamedTable<'d>> {
        self.table(section).map(|table| table.entries()).unwrap_or_default()
    }

    /// Returns all keys of a table whose keys are names or paths and whose values are not tables.
    pub fn keys(&self) -> Vec<Located<String>> {
        self.toml.iter().map(|(key, _)| self.position(key).with(key.to_owned())).collect()
    }

    /// Returns the value of a variable: true or false, a whole number, a text, or a list of texts.
    pub fn variable(&self, key: &str) -> Option<Located<VarValue>> {
        if self.item(key).is_some_and(Item::is_array) {
            let position = self.position(key);
            let texts = self.strings(key);
            let long =
                texts.len() > MAX_VAR_LIST || texts.iter().any(|text| text.len() > MAX_VAR_TEXT);
            let list = VarValue::List(texts.into_iter().map(|text| text.value).collect());
            return self.bounded(position.with(list), long);
        }
        let value =
            self.typed(key, "true, false, a whole number, a text or a list of texts", |item| {
                let text = || item.as_str().map(|text| VarValue::Text(text.to_owned()));
                item.as_bool()
                    .map(VarValue::Bool)
                    .or_else(|| item.as_integer().map(VarValue::Integer))
                    .or_else(text)
            })?;
        let long = matches!(&value.value, VarValue::Text(text) if text.len() > MAX_VAR_TEXT);
        self.bounded(value, long)
    }

    fn bounded(&self, value: Located<VarValue>, too_long: bool) -> Option<Located<VarValue>> {
        if too_long {
            let hint =
                format!("a text has up to {MAX_VAR_TEXT} bytes, a list up to {MAX_VAR_LIST} texts");
            self.document.fault(&value, "is too long", hint);
        }
        (!too_long).then_some(value)
    }

    fn inner(&self, key: &str, toml: &'d dyn TableLike) -> Table<'d> {
        let position = self.position(key);
        Table::new(self.document, toml, position.key, position.line)
    }

    fn item(&self, key: &str) -> Option<&'d Item> {
        self.read_keys.borrow_mut().insert(key.to_owned());
        self.toml.get(key).filter(|item| !item.is_none())
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        get: impl Fn(&Item) -> Option<T>,
    ) -> Option<Located<T>> {
        let item = self.item(key)?;
        let value = get(item);
        if value.is_none() {
            self.wrong(key, item.type_name(), expected);
        }
        value.map(|value| self.position(key).with(value))
    }

    fn convert<T: FromStr<Err = ParseError>>(&self, text: Located<String>) -> Option<Located<T>> {
        text.parse()
            .map_err(|error| self.document.error(&text, &error))
            .ok()
            .map(|value| text.with(value))
    }

    fn address(&self, text: Located<String>) -> Option<Located<Ipv4Addr>> {
        let address = text.parse().ok();
        if address.is_none() {
            let message = format!("`{}` is not an IPv4 address", brief(&text));
            self.document.fault(&text, message, "write it as 10.77.0.1");
        }
        address.map(|address| text.with(address))
    }

    fn wrong(&self, key: &str, found: &str, expected: &str) {
        self.wrong_at(&self.position(key), found, expected);
    }

    fn wrong_at(&self, at: &Located<()>, found: &str, expected: &str) {
        let article = if found.starts_with(['a', 'i']) { "an" } else { "a" };
        self.document.fault(at, format!("is {article} {found}"), format!("write {expected}"));
    }
}

/// Shortens a text for an error message and replaces control characters.
pub fn brief(text: &str) -> String {
    const MAX_QUOTE: usize = 60;
    let short: String =
        text.chars().take(MAX_QUOTE).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().count() > MAX_QUOTE { format!("{short}...") } else { short }
}
