//! `APKINDEX`: parses the package records of a repository. Names and versions become file names, so
//! the parser validates them.

use super::depends::{Dependency, parse_provided};
use crate::parts::installed::Checksum;
use std::collections::BTreeMap;

/// File name in an index archive.
pub const INDEX_FILE: &str = "APKINDEX";

/// A package of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Lines of the record, copied into the site's index.
    pub text: String,
    pub name: String,
    pub version: String,
    pub arch: String,
    /// SHA-1 of the control member.
    pub checksum: Checksum,
    /// File size in bytes.
    pub size: u64,
    pub depends: Vec<Dependency>,
    /// Provided names, with the version if there is one.
    pub provides: Vec<(String, Option<String>)>,
    /// Packages that, when all are installed, cause apk to install this package too.
    pub install_if: Vec<Dependency>,
    /// Provider priority; apk chooses the highest.
    pub priority: Option<u64>,
    /// Build time in seconds since the epoch; 0 if unknown.
    pub built: u64,
    /// Index of the repository; set by the caller.
    pub repository: usize,
}

/// An invalid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct IndexError {
    /// Last line of the record, from 1.
    pub line: usize,
    pub message: String,
}

impl Record {
    /// Returns the file name in a repository.
    pub fn file(&self) -> String {
        format!("{}-{}.apk", self.name, self.version)
    }

    /// Returns whether the package satisfies a dependency, by name or by a provided name.
    pub fn satisfies(&self, dependency: &Dependency) -> bool {
        dependency.is_met_by(&self.name, Some(&self.version))
            || self
                .provides
                .iter()
                .any(|(name, version)| dependency.is_met_by(name, version.as_deref()))
    }
}

/// Parses an index.
pub fn parse(text: &str) -> Result<Vec<Record>, IndexError> {
    let mut records = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    // An additional empty line ends the last record.
    for (at, line) in text.lines().chain([""]).enumerate() {
        if !line.is_empty() {
            lines.push(line);
        } else if !lines.is_empty() {
            let record = record(&lines).map_err(|message| IndexError { line: at, message })?;
            records.push(record);
            lines.clear();
        }
    }
    Ok(records)
}

fn record(lines: &[&str]) -> Result<Record, String> {
    let pairs = lines.iter().filter_map(|line| line.split_once(':'));
    let fields: BTreeMap<&str, &str> = pairs.filter(|(letter, _)| letter.len() == 1).collect();
    let field = |letter: &str| fields.get(letter).copied().unwrap_or_default();
    let name = plain(field("P")).ok_or("a package without a usable name (P:)")?;
    let of = |what: &str| format!("package {name} has no usable {what}");
    let words = |letter: &str| field(letter).split_whitespace().map(Dependency::parse).collect();
    let provides = field("p").split_whitespace().map(parse_provided);
    Ok(Record {
        text: lines.iter().map(|line| format!("{line}\n")).collect(),
        version: plain(field("V")).ok_or_else(|| of("version (V:)"))?,
        arch: plain(field("A")).ok_or_else(|| of("architecture (A:)"))?,
        checksum: Checksum::parse(field("C")).ok_or_else(|| of("checksum (C:Q1...)"))?,
        size: field("S").parse().map_err(|_| of("size (S:)"))?,
        depends: words("D"),
        provides: provides
            .map(|(name, version)| (name.to_owned(), version.map(str::to_owned)))
            .collect(),
        install_if: words("i"),
        priority: field("k").parse().ok(),
        built: field("t").parse().unwrap_or(0),
        repository: 0,
        name,
    })
}

/// Returns whether a word may be a part of a file name and of a URL.
fn plain(text: &str) -> Option<String> {
    let first = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let rest = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"+-._~".contains(&c));
    (first && rest && !text.starts_with("..") && text.len() <= 128).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
C:Q12jmj7l5rSw0yVb/vlWAYkK/YBwk=
P:busybox
V:1.37.0-r30
A:x86_64
S:508912
I:798720
T:Size: optimized toolbox
D:so:libc.musl-x86_64.so.1
p:cmd:busybox=1.37.0-r30 ash
i:a b
k:100

";

    #[test]
    fn index_record_is_parsed_with_all_fields() {
        let records = parse(TEXT).unwrap();
        let [busybox] = &records[..] else { panic!("{records:?}") };
        assert_eq!((busybox.file().as_str(), busybox.size), ("busybox-1.37.0-r30.apk", 508_912));
        assert_eq!(busybox.text, TEXT.trim_end().to_owned() + "\n");
        assert!(
            busybox.satisfies(&Dependency::parse("cmd:busybox>=1"))
                && busybox.satisfies(&Dependency::parse("ash"))
        );
        assert_eq!((busybox.priority, busybox.install_if.len()), (Some(100), 2));
    }

    #[test]
    fn index_record_with_invalid_field_is_refused_with_its_line() {
        for (old, new, expected) in [
            ("P:busybox", "P:../../etc", "usable name"),
            ("P:busybox", "P:-rf", "usable name"),
            ("V:1.37.0-r30", "V:1/2", "version"),
            ("C:Q1", "C:Q9", "checksum"),
            ("S:508912", "S:many", "size"),
        ] {
            let error = parse(&TEXT.replace(old, new)).unwrap_err();
            assert!(error.message.contains(expected) && error.line == 11, "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "([A-Za-z]:[ -~]{0,12}\n|\n|\\PC{0,8}\n){0,20}") {
            let _ = parse(&text);
        }
    }
}
