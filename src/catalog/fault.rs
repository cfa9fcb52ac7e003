//! What is wrong with a file of the catalog: where, what, and what to do about it.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file or folder.
    pub file: PathBuf,
    /// Line in it, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl Fault {
    pub(crate) fn new(file: &Path, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Fault { file: file.to_owned(), line: None, what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}; {}", self.what, self.hint)
    }
}

/// Everything that is wrong, at once. Never empty where it is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    pub(crate) fn push(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// The value, if nothing was wrong.
    pub(crate) fn or<T>(self, value: T) -> Result<T, Faults> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Fault::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Faults {}
