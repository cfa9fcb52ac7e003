//! Parses apk's installed database: the files of each package, with mode and checksum.
//!
//! Each line is a letter, a colon and a value; a blank line ends a package. `F:` opens a folder,
//! and `R:` a file in that folder. `M:` and `a:` contain their owner and mode as `uid:gid:mode`,
//! `Z:` a checksum. The parser is total.

use meshd_types::SafePath;
use std::{collections::BTreeMap, fmt};

/// An installed package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// Fields of the package by letter, such as `P` (name) and `D` (dependencies).
    pub fields: BTreeMap<char, String>,
    /// Folders in the order of the database, without the root folder.
    pub folders: Vec<Node>,
    pub files: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub path: SafePath,
    /// Permission bits.
    pub mode: u32,
    pub owner: (u32, u32),
    /// Checksum of the content or of the link's target.
    pub checksum: Option<Checksum>,
}

/// `Q1` and SHA-1 in base64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub [u8; 20]);

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct DatabaseError {
    /// Line from 1.
    pub line: usize,
    pub message: String,
}

const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

impl Package {
    pub fn name(&self) -> &str {
        self.field('P')
    }

    pub fn version(&self) -> &str {
        self.field('V')
    }

    /// Returns a field, or an empty text.
    pub fn field(&self, letter: char) -> &str {
        self.fields.get(&letter).map_or("", String::as_str)
    }

    /// Returns the checksum that names the package in scripts and triggers of the database.
    pub fn identity(&self) -> Option<Checksum> {
        Checksum::parse(self.field('C'))
    }
}

impl Checksum {
    /// Parses the form of the database: `Q1` and base64.
    pub fn parse(text: &str) -> Option<Self> {
        unbase64(text.strip_prefix("Q1")?)?.try_into().ok().map(Checksum)
    }

    /// Computes the checksum of a content.
    pub fn of(content: &[u8]) -> Self {
        use sha1::Digest as _;
        Checksum(sha1::Sha1::digest(content).into())
    }

    /// Returns the hexadecimal form in file names of scripts.
    pub fn to_hex(self) -> String {
        meshd_types::hex(&self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// Parses the database.
pub fn parse(text: &str) -> Result<Vec<Package>, DatabaseError> {
    let mut packages = Vec::new();
    let mut package = Package::default();
    let mut folder = String::new();
    let mut last = LastEntry::Package;
    for (at, line) in text.lines().enumerate() {
        let fail = |message: String| DatabaseError { line: at + 1, message };
        if line.is_empty() {
            close(&mut packages, &mut package).map_err(fail)?;
            (folder, last) = (String::new(), LastEntry::Package);
            continue;
        }
        let (letter, value) =
            line.split_once(':').ok_or_else(|| fail("no colon after the letter".into()))?;
        let mut letters = letter.chars();
        let (Some(letter), None) = (letters.next(), letters.next()) else {
            return Err(fail(format!(
                "`{}` is not one letter",
                letter.chars().take(20).collect::<String>()
            )));
        };
        last = read_line(&mut package, &mut folder, last, letter, value).map_err(fail)?;
    }
    let end = text.lines().count();
    close(&mut packages, &mut package).map_err(|message| DatabaseError { line: end, message })?;
    Ok(packages)
}

/// The entry to which the next `M:`, `a:` or `Z:` belongs.
#[derive(Clone, Copy)]
enum LastEntry {
    Package,
    RootFolder,
    Folder,
    File,
}

fn read_line(
    package: &mut Package,
    folder: &mut String,
    last: LastEntry,
    letter: char,
    value: &str,
) -> Result<LastEntry, String> {
    match letter {
        'F' => {
            value.clone_into(folder);
            if value.is_empty() {
                return Ok(LastEntry::RootFolder);
            }
            package.folders.push(node(value, FOLDER_MODE)?);
            Ok(LastEntry::Folder)
        }
        'R' => {
            let path =
                if folder.is_empty() { value.to_owned() } else { format!("{folder}/{value}") };
            package.files.push(node(&path, FILE_MODE)?);
            Ok(LastEntry::File)
        }
        'M' | 'a' | 'Z' => {
            let node = match last {
                LastEntry::Folder if letter == 'M' => package.folders.last_mut(),
                LastEntry::File if letter != 'M' => package.files.last_mut(),
                LastEntry::RootFolder if letter == 'M' => return Ok(last),
                _ => None,
            };
            let node = node.ok_or_else(|| format!("`{letter}:` belongs to nothing"))?;
            if letter == 'Z' {
                node.checksum =
                    Some(Checksum::parse(value).ok_or("a checksum of an unknown kind")?);
            } else {
                (node.owner, node.mode) = access(value).ok_or("is not uid:gid:mode")?;
            }
            Ok(last)
        }
        _ => {
            package.fields.insert(letter, value.to_owned());
            Ok(last)
        }
    }
}

fn node(path: &str, mode: u32) -> Result<Node, String> {
    let path = SafePath::new(path).map_err(|e| e.to_string())?;
    Ok(Node { path, mode, owner: (0, 0), checksum: None })
}

/// Parses `uid:gid:mode`, optionally followed by the checksum of extended attributes.
fn access(value: &str) -> Option<((u32, u32), u32)> {
    let mut parts = value.split(':');
    let owner = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
    (mode <= 0o7777).then_some((owner, mode))
}

fn close(packages: &mut Vec<Package>, package: &mut Package) -> Result<(), String> {
    let done = std::mem::take(package);
    if done == Package::default() {
        return Ok(());
    }
    if done.name().is_empty() || done.version().is_empty() {
        return Err("a package without name or version".into());
    }
    packages.push(done);
    Ok(())
}

/// Decodes standard base64 with padding.
fn unbase64(text: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let body = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - body.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let mut bits = 0u32;
    let mut bit_count = 0u32;
    for byte in body.bytes() {
        let value = ALPHABET.iter().position(|c| *c == byte)?;
        bits = (bits << 6 | u32::try_from(value).ok()?) & 0xffff;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            out.push(u8::try_from(bits >> bit_count & 0xff).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
C:Q1VFqm8pEgmviZMrdh2eQiwneFlsw=
P:alpine-baselayout
V:3.7.2-r0
D:alpine-baselayout-data=3.7.2-r0 /bin/sh
F:etc
R:motd
Z:Q1SLkS9hBidUbPwwrw+XR0Whv3ww8=
F:etc/crontabs
R:root
a:0:0:600
F:tmp
M:0:0:1777

C:Q1IedNSQqyqGmzoSHWsnOYs1iHF6E=
P:musl
V:1.2.5-r23
F:
R:top
";

    #[test]
    fn owners_modes_and_checksums_apply_to_the_preceding_entry() {
        let packages = parse(TEXT).unwrap();
        let names: Vec<_> = packages.iter().map(Package::name).collect();
        assert_eq!(names, ["alpine-baselayout", "musl"]);
        let files: Vec<_> = packages[0]
            .files
            .iter()
            .map(|f| (f.path.relative(), f.mode, f.checksum.is_some()))
            .collect();
        assert_eq!(files, [("etc/motd", 0o644, true), ("etc/crontabs/root", 0o600, false)]);
        let folders: Vec<_> =
            packages[0].folders.iter().map(|f| (f.path.relative(), f.mode)).collect();
        assert_eq!(folders, [("etc", 0o755), ("etc/crontabs", 0o755), ("tmp", 0o1777)]);
        assert_eq!(packages[1].files[0].path.relative(), "top");
    }

    #[test]
    fn checksum_matches_content_and_invalid_text_is_refused() {
        let empty = "Q12jmj7l5rSw0yVb/vlWAYkK/YBwk=";
        assert_eq!(Checksum::parse(empty), Some(Checksum::of(b"")));
        assert_eq!(Checksum::of(b"").to_hex(), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        for bad in ["", "Q1", "Q2aaaa", "Q1!!!!", "Q12jmj7l5rSw0yVb/vlWAYkK/YBw=="] {
            assert_eq!(Checksum::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn malformed_line_is_reported_with_its_number() {
        for (text, line) in [
            ("P:a\nV:1\nnonsense\n", 3),
            ("P:a\nV:1\nF:../etc\n", 3),
            ("P:a\n\n", 2),
            ("M:0:0:755\n", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "([A-Za-z]:[ -~]{0,12}\n|\n|\\PC{0,8}\n){0,20}") {
            let _ = parse(&text);
        }

        #[test]
        fn base64_never_panics(text in "\\PC{0,40}") {
            let _ = unbase64(&text);
        }
    }
}
