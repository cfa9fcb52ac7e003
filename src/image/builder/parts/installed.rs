//! Parses apk's installed database: the files of each package, with mode and checksum.
//!
//! The format is one letter, a colon and a value per line; a blank line ends a package. `F:` opens a folder and `R:` a file in
//! it; `M:` and `a:` give their owner and mode as `uid:gid:mode`, `Z:` a checksum. The parser is total.

use meshd_types::SafePath;
use std::{collections::BTreeMap, fmt};

/// One installed package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// Its own fields by letter, such as `P` the name and `D` its dependencies.
    pub fields: BTreeMap<char, String>,
    /// Its folders, in the order of the database. The root folder is not among them.
    pub folders: Vec<Node>,
    /// Its files and symbolic links.
    pub files: Vec<Node>,
}

/// A folder or file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub path: SafePath,
    /// Permission bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Checksum of a file's content or a link's target.
    pub checksum: Option<Checksum>,
}

/// A checksum as the database writes it: `Q1` and SHA-1 in base64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub [u8; 20]);

/// A line that makes no sense.
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
    /// The package's name.
    pub fn name(&self) -> &str {
        self.field('P')
    }

    /// The package's version.
    pub fn version(&self) -> &str {
        self.field('V')
    }

    /// A field, or empty.
    pub fn field(&self, letter: char) -> &str {
        self.fields.get(&letter).map_or("", String::as_str)
    }

    /// The checksum that names the package in the scripts and triggers of the database.
    pub fn identity(&self) -> Option<Checksum> {
        Checksum::parse(self.field('C'))
    }
}

impl Checksum {
    /// Reads `Q1` and base64.
    pub fn parse(text: &str) -> Option<Self> {
        unbase64(text.strip_prefix("Q1")?)?.try_into().ok().map(Checksum)
    }

    /// The checksum of a content.
    pub fn of(content: &[u8]) -> Self {
        use sha1::Digest as _;
        Checksum(sha1::Sha1::digest(content).into())
    }

    /// As file names of scripts carry it.
    pub fn to_hex(self) -> String {
        meshd_types::hex(&self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// Reads the database.
///
/// # Errors
/// The first line that makes no sense.
pub fn parse(text: &str) -> Result<Vec<Package>, DatabaseError> {
    let mut packages = Vec::new();
    let mut package = Package::default();
    let mut folder = String::new();
    let mut last = Last::Package;
    for (at, line) in text.lines().enumerate() {
        let fail = |message: String| DatabaseError { line: at + 1, message };
        if line.is_empty() {
            close(&mut packages, &mut package).map_err(fail)?;
            (folder, last) = (String::new(), Last::Package);
            continue;
        }
        let (letter, value) = line.split_once(':').ok_or_else(|| fail("no colon after the letter".into()))?;
        let mut letters = letter.chars();
        let (Some(letter), None) = (letters.next(), letters.next()) else {
            return Err(fail(format!("`{}` is not one letter", letter.chars().take(20).collect::<String>())));
        };
        last = read_line(&mut package, &mut folder, last, letter, value).map_err(fail)?;
    }
    let end = text.lines().count();
    close(&mut packages, &mut package).map_err(|message| DatabaseError { line: end, message })?;
    Ok(packages)
}

/// What the next `M:`, `a:` or `Z:` speaks of.
#[derive(Clone, Copy)]
enum Last {
    Package,
    RootFolder,
    Folder,
    File,
}

fn read_line(
    package: &mut Package,
    folder: &mut String,
    last: Last,
    letter: char,
    value: &str,
) -> Result<Last, String> {
    match letter {
        'F' => {
            value.clone_into(folder);
            if value.is_empty() {
                return Ok(Last::RootFolder);
            }
            package.folders.push(node(value, FOLDER_MODE)?);
            Ok(Last::Folder)
        }
        'R' => {
            let path = if folder.is_empty() { value.to_owned() } else { format!("{folder}/{value}") };
            package.files.push(node(&path, FILE_MODE)?);
            Ok(Last::File)
        }
        'M' | 'a' | 'Z' => {
            let node = match last {
                Last::Folder if letter == 'M' => package.folders.last_mut(),
                Last::File if letter != 'M' => package.files.last_mut(),
                Last::RootFolder if letter == 'M' => return Ok(last),
                _ => None,
            };
            let node = node.ok_or_else(|| format!("`{letter}:` belongs to nothing"))?;
            if letter == 'Z' {
                node.checksum = Some(Checksum::parse(value).ok_or("a checksum of an unknown kind")?);
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

/// `uid:gid:mode`, optionally followed by the checksum of extended attributes.
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

/// Standard base64 with padding; `None` for anything else.
fn unbase64(text: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let body = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - body.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0u32);
    for byte in body.bytes() {
        let value = ALPHABET.iter().position(|c| *c == byte)?;
        bits = (bits << 6 | u32::try_from(value).ok()?) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from(bits >> held & 0xff).ok()?);
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
        let files: Vec<_> =
            packages[0].files.iter().map(|f| (f.path.relative(), f.mode, f.checksum.is_some())).collect();
        assert_eq!(files, [("etc/motd", 0o644, true), ("etc/crontabs/root", 0o600, false)]);
        let folders: Vec<_> = packages[0].folders.iter().map(|f| (f.path.relative(), f.mode)).collect();
        assert_eq!(folders, [("etc", 0o755), ("etc/crontabs", 0o755), ("tmp", 0o1777)]);
        assert_eq!(packages[1].files[0].path.relative(), "top");
    }

    #[test]
    fn checksum_is_that_of_the_content() {
        let empty = "Q12jmj7l5rSw0yVb/vlWAYkK/YBwk=";
        assert_eq!(Checksum::parse(empty), Some(Checksum::of(b"")));
        assert_eq!(Checksum::of(b"").to_hex(), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        for bad in ["", "Q1", "Q2aaaa", "Q1!!!!", "Q12jmj7l5rSw0yVb/vlWAYkK/YBw=="] {
            assert_eq!(Checksum::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn malformed_line_is_named() {
        for (text, line) in
            [("P:a\nV:1\nnonsense\n", 3), ("P:a\nV:1\nF:../etc\n", 3), ("P:a\n\n", 2), ("M:0:0:755\n", 1)]
        {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }

    proptest! {
        #[test]
        fn junk_is_read_or_refused_and_never_panics(text in "([A-Za-z]:[ -~]{0,12}\n|\n|\\PC{0,8}\n){0,20}") {
            let _ = parse(&text);
        }

        #[test]
        fn base64_never_panics(text in "\\PC{0,40}") {
            let _ = unbase64(&text);
        }
    }
}
