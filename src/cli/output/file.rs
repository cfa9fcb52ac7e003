//! Files that a command writes, perhaps as root, into a folder where others may write as well.

use meshd_types::failpoint;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// Creates a file in place of an old one. Does not follow a link, and does not write into a file of
/// somebody else.
pub(crate) fn replace(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode);
    if !failpoint::defends("output-links") {
        return options.create(true).truncate(true).open(path);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    options.create_new(true).open(path)
}

/// Writes a file atomically.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = with_suffix(path, ".new");
    let written = replace(&temporary, 0o644)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Returns the path with more text at its end.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn output_file_follows_no_link_of_another_user() {
        let dir = tempfile::tempdir().expect("a folder");
        let victim = dir.path().join("victim");
        let out = dir.path().join("out");
        fs::write(&victim, "mine").expect("written");
        for name in ["out.new", "out"] {
            symlink(&victim, dir.path().join(name)).expect("a link");
        }
        write_whole(&out, b"overlay").expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"mine");
        assert_eq!(fs::read(&out).expect("read"), b"overlay");
        assert!(fs::symlink_metadata(&out).expect("read").is_file());
        symlink(&victim, dir.path().join("part")).expect("a link");
        replace(&dir.path().join("part"), 0o600)
            .and_then(|mut file| file.write_all(b"backup"))
            .expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"mine");
    }
}
