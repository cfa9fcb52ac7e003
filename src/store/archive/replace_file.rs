//! Replaces a file of the archive: a reader, and a start after a crash, find the old content or the
//! new one.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

/// The data that is flushed before the new content replaces the old.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    Content,
    /// A power failure may leave an empty file.
    Nothing,
}

/// Writes `bytes` to `temporary`, and renames it to `path`. Both are in the same folder, and no
/// other writer uses `temporary`.
pub(super) fn replace_file(
    path: &Path,
    temporary: &Path,
    bytes: &[u8],
    flush: Flush,
) -> io::Result<()> {
    let written = File::create(temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        if flush == Flush::Content { file.sync_data() } else { Ok(()) }
    });
    written.and_then(|()| fs::rename(temporary, path)).inspect_err(|_| {
        // On a full disk, half a file would keep the space from the store.
        let _ = fs::remove_file(temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_that_fails_keeps_the_old_content_and_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("site");
        let temporary = dir.path().join("site.new");
        for flush in [Flush::Content, Flush::Nothing] {
            replace_file(&path, &temporary, b"old", flush).expect("written");
            let below_a_file = path.join("site");
            assert!(replace_file(&below_a_file, &temporary, b"new", flush).is_err());
            assert_eq!(fs::read(&path).expect("there"), b"old");
            assert!(!temporary.exists());
        }
    }
}
