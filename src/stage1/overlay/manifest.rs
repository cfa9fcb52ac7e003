//! Checks the public files of the overlay, byte for byte, in the new root.

use super::unpack::open_root;
use meshd_types::{Digest, SafePath};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::Path,
};

/// Path of the manifest in the root.
const MANIFEST: &str = "etc/meshd/manifest.sha256";
/// Maximum size of a manifest, and of a listed file, in bytes.
const MAX_MANIFEST: u64 = 16 * 1024 * 1024;
const MAX_FILE: u64 = 4 * 1024 * 1024 * 1024;

/// The overlay is not the one that was rendered.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("read /{MANIFEST}: {0}")]
    Read(io::Error),
    #[error("read /{MANIFEST}: line {0} is not `DIGEST  /PATH`")]
    Line(usize),
    #[error("check the overlay: the manifest is empty")]
    Empty,
    #[error("check {path} of the overlay: {cause}")]
    Open { path: SafePath, cause: io::Error },
    #[error("check {0} of the overlay: it is not what was rendered")]
    Changed(SafePath),
}

/// Checks each file of the manifest. Returns their number.
pub fn check_manifest(root: &Path) -> Result<usize, ManifestError> {
    let root = open_root(root).map_err(ManifestError::Read)?;
    let read = |path: &str, limit: u64| read_below(&root, path, limit);
    let bytes = read(MANIFEST, MAX_MANIFEST).map_err(ManifestError::Read)?;
    let lines = parse(&bytes)?;
    for (digest, path) in &lines {
        let content = read(path.relative(), MAX_FILE)
            .map_err(|cause| ManifestError::Open { path: path.clone(), cause })?;
        if Digest::of(&content) != *digest {
            return Err(ManifestError::Changed(path.clone()));
        }
    }
    Ok(lines.len())
}

/// Parses the format of sha256sum. Total.
fn parse(bytes: &[u8]) -> Result<Vec<(Digest, SafePath)>, ManifestError> {
    let text = String::from_utf8_lossy(bytes);
    let line = |(number, row): (usize, &str)| {
        let parts = row.split_once("  /");
        let parsed = parts
            .and_then(|(digest, path)| Some((digest.parse().ok()?, SafePath::new(path).ok()?)));
        parsed.ok_or(ManifestError::Line(number + 1))
    };
    let lines: Vec<_> = text.lines().enumerate().map(line).collect::<Result<_, _>>()?;
    if lines.is_empty() { Err(ManifestError::Empty) } else { Ok(lines) }
}

/// Reads a file of the root, of which no link leads outside.
pub(super) fn read_below(root: &OwnedFd, path: &str, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    let mut bytes = Vec::new();
    File::from(file).take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn check(content: &str, manifest: &str) -> Result<usize, ManifestError> {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("etc/meshd")).expect("made");
        fs::write(root.path().join("etc/motd"), content).expect("written");
        fs::write(root.path().join(MANIFEST), manifest).expect("written");
        check_manifest(root.path())
    }

    #[test]
    fn changed_or_missing_file_is_named() {
        let digest = Digest::of(b"hello");
        let manifest = format!("{digest}  /etc/motd\n");
        assert_eq!(check("hello", &manifest).expect("as rendered"), 1);
        let changed = check("hellp", &manifest).expect_err("changed").to_string();
        assert_eq!(changed, "check /etc/motd of the overlay: it is not what was rendered");
        let missing = check("hello", &format!("{digest}  /etc/other\n")).expect_err("missing");
        assert!(missing.to_string().starts_with("check /etc/other of the overlay: "));
        for manifest in ["", "junk\n", "00  /etc/motd\n"] {
            assert!(check("hello", manifest).is_err(), "{manifest:?}");
        }
        assert!(check("hello", &format!("{digest}  /../etc/motd\n")).is_err());
    }

    proptest! {
        #[test]
        fn manifest_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
