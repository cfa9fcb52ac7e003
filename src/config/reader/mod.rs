//! Strict TOML reader: typed getters, faults with line numbers, unknown keys rejected.
//!
//! | module | content |
//! | --- | --- |
//! | `duration` | durations in configuration files: `30s`, `15m`, `1h`, `7d` |
//! | `table` | one TOML table: typed getters that record faults, and detection of unknown keys |
//!
//! ```text
//! let file = reader::parse(text, path)?;            // returns a syntax error with its line
//! let value = {
//!     let root = file.root();
//!     let name = root.string("name");               // wrong type: a fault, and None
//!     let name = root.required("name", name, "give it a name");
//!     ..
//! };                                                // a table that goes out of scope reports its unknown keys
//! file.finish(value)                                // the value, or all faults in order of their lines
//! ```
//! All TOML files of meshd are read with it.

mod duration;
mod table;

pub use duration::{parse_duration, write_duration};
pub use table::brief;
pub use table::{NamedTable, Table};

use super::{Fault, Faults, files::read_regular};
use meshd_types::{Hint as _, ParseError};
use std::{
    cell::RefCell,
    fmt,
    ops::{Deref, Range},
    path::{Path, PathBuf},
};

/// Maximum file size in bytes. A site with a thousand profiles takes about 200 KB.
pub const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Maximum number of faults of one file: each is logged, and shown to everybody who asks for them.
const MAX_FAULTS: usize = 1000;

/// A value with its position.
#[derive(Clone, PartialEq, Eq)]
pub struct Located<T> {
    pub value: T,
    /// Line from 1.
    pub line: usize,
    /// Dotted key; elements of lists have an index: `kernel_args[2]`.
    pub key: String,
}

impl<T> Located<T> {
    /// Converts the value and keeps the position.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: change(self.value), line: self.line, key: self.key }
    }

    /// Returns another value with this position.
    pub fn with<U>(&self, value: U) -> Located<U> {
        Located { value, line: self.line, key: self.key.clone() }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}:{}", self.value, self.key, self.line)
    }
}

/// A parsed file, and the faults found so far.
#[derive(Debug)]
pub struct Document {
    file: PathBuf,
    /// Byte offset at which each line begins.
    lines: Vec<usize>,
    toml: toml_edit::Document<String>,
    faults: RefCell<Vec<Fault>>,
}

/// Message of the parser for too many levels of nesting. This error has no position.
const TOO_DEEP: &str = "recursion limit";
const SYNTAX_HINT: &str = "the file is TOML: `key = \"text\"`, `key = 8080`, `key = [\"a\", \"b\"]`, \
                           `[section]`";

/// Parses TOML. The error is the first syntax error. Paths in the text are relative to the folder
/// of `file`.
pub fn parse(text: &str, file: &Path) -> Result<Document, Faults> {
    let lines: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let toml = toml_edit::Document::parse(text.to_owned()).map_err(|error| {
        let line = match error.span() {
            Some(span) => line_of(&lines, span.start),
            None if error.message() == TOO_DEEP => deepest_line(text, &lines),
            None => 0,
        };
        let word = error.span().and_then(|span| unquoted_word(text, span.start)).map(table::brief);
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        let (message, hint) = explanation(message, word);
        let hint = hint.into();
        Faults::from(Fault { file: file.to_owned(), line, key: String::new(), message, hint })
    })?;
    Ok(Document { file: file.to_owned(), lines, toml, faults: RefCell::default() })
}

/// Returns message and hint for an error of the parser. `word` is the word without quotes at its
/// position, if there is one.
fn explanation(message: String, word: Option<String>) -> (String, &'static str) {
    let Some(word) = word else {
        return match message.as_str() {
            "duplicate key" => {
                (message, "this key or section is in the file already: keep one of the two")
            }
            TOO_DEEP => ("too many levels of nesting".to_owned(), "use at most 80 levels"),
            _ => (message, SYNTAX_HINT),
        };
    };
    let hint = match word.as_str() {
        "null" | "nil" | "None" => "remove the key: an absent key has its default",
        _ => "write a text in quotes, or true, false or a number",
    };
    (format!("`{word}` is not a value"), hint)
}

/// Returns the first line with which the text has too many levels of nesting.
fn deepest_line(text: &str, lines: &[usize]) -> usize {
    let is_too_deep = |text: &str| {
        let parsed = toml_edit::Document::parse(text.to_owned());
        parsed.is_err_and(|error| error.message() == TOO_DEEP)
    };
    lines.partition_point(|start| !is_too_deep(&text[..*start]))
}

/// Returns the word without quotes that is the value at `start`; the parser takes some of them for
/// misspelled numbers.
fn unquoted_word(text: &str, start: usize) -> Option<&str> {
    let (before, value) = text.split_at_checked(start)?;
    let before = before.trim_end();
    // A bracket at the beginning of a line opens the header of a section.
    let is_header =
        before.rsplit('\n').next().is_some_and(|line| line.trim_start().starts_with('['));
    let is_value = before.ends_with(['=', ',']) || (before.ends_with('[') && !is_header);
    let word = value.split(|c: char| c.is_whitespace() || ",]}#".contains(c)).next()?;
    (is_value && word.starts_with(|c: char| c.is_alphabetic())).then_some(word)
}

/// Reads a UTF-8 file of at most [`MAX_FILE`] bytes. `hint` is used if it does not exist.
pub fn read_text(file: &Path, hint: &str) -> Result<String, Faults> {
    let fault = |message: String, hint: &str| Faults::from(Fault::of_file(file, message, hint));
    let refused = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => fault("there is no such file".into(), hint),
        std::io::ErrorKind::FileTooLarge => {
            fault(format!("the file is larger than {MAX_FILE} bytes"), "is it the right file?")
        }
        std::io::ErrorKind::InvalidData => {
            fault("the file is not UTF-8 text".into(), "save it as UTF-8")
        }
        _ => fault(
            format!("cannot be read: {error}"),
            "check that it is a file, and its permissions",
        ),
    };
    let bytes = read_regular(file, MAX_FILE).map_err(refused)?;
    String::from_utf8(bytes).map_err(|_| refused(std::io::ErrorKind::InvalidData.into()))
}

fn line_of(lines: &[usize], offset: usize) -> usize {
    lines.partition_point(|start| *start <= offset)
}

impl Document {
    /// Returns the root table. Call it once: each root table reports the keys that were not read
    /// from it.
    pub fn root(&self) -> Table<'_> {
        Table::new(self, self.toml.as_table(), String::new(), 0)
    }

    /// Returns the number of faults so far.
    pub fn fault_count(&self) -> usize {
        self.faults.borrow().len()
    }

    /// Records a fault at the position of a value.
    pub fn fault<T>(
        &self,
        position: &Located<T>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.fault_at(position.line, position.key.clone(), message, hint);
    }

    /// Records an error at the position of a value.
    pub fn error<T>(&self, position: &Located<T>, error: &ParseError) {
        self.fault(position, error.message(), error.hint().unwrap_or_default());
    }

    /// Returns a text of one line; other texts are faults.
    pub fn plain_line(&self, text: Located<String>) -> String {
        if text.chars().any(char::is_control) {
            self.fault(
                &text,
                "is not one line of text",
                "write it without line breaks, tabs and the like",
            );
        }
        text.value
    }

    /// Records a fault at a line and key.
    pub fn fault_at(
        &self,
        line: usize,
        key: String,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < MAX_FAULTS {
            faults.push(Fault {
                file: self.file.clone(),
                line,
                key,
                message: message.into(),
                hint: hint.into(),
            });
        }
    }

    /// Returns the value, or all faults in line order. Drop all tables first: they report unknown
    /// keys when dropped.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Faults> {
        let mut faults = self.faults.into_inner();
        faults.sort_by(|a, b| (a.line, &a.key).cmp(&(b.line, &b.key)));
        faults.dedup();
        match value {
            Some(value) if faults.is_empty() => Ok(value),
            _ if faults.is_empty() => Err(Fault::of_file(
                self.file,
                "something required is missing",
                "compare it with the sample",
            )
            .into()),
            _ => Err(Faults(faults)),
        }
    }

    fn line(&self, span: Option<Range<usize>>) -> usize {
        span.map_or(0, |span| line_of(&self.lines, span.start))
    }

    /// Resolves a path relative to the folder of the file.
    fn resolve(&self, path: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }
}

/// Returns the value, or the default if the key is absent; `None` if the value has a fault.
pub(crate) fn or<T>(
    table: &Table<'_>,
    key: &str,
    value: Option<Located<T>>,
    default: T,
) -> Option<T> {
    match value {
        Some(value) => Some(value.value),
        None if table.has(key) => None,
        None => Some(default),
    }
}

/// Returns the text if it satisfies the rule, else records the fault.
pub(crate) fn checked(
    document: &Document,
    text: Located<String>,
    rule: fn(&str) -> Result<(), ParseError>,
) -> Option<String> {
    rule(&text).map_err(|error| document.error(&text, &error)).ok()?;
    Some(text.value)
}

#[cfg(test)]
mod tests;
