//! Files of keys and certificates, written atomically; private keys have mode 0600.

use super::TrustError;
use meshd_types::fail;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Largest file that is taken for a key or certificate, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// Makes the folder, readable by its owner alone.
pub fn make_folder(dir: &Path) -> Result<(), TrustError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fault("make the folder", dir))
}

/// Reads a file, or `None` if there is none.
pub fn read(path: &Path) -> Result<Option<String>, TrustError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault("read", path)(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text).map_err(fault("read", path))?;
    Ok(Some(text))
}

/// Reads a private key, and insists that nobody else can.
pub fn read_private(path: &Path) -> Result<Option<String>, TrustError> {
    let text = read(path)?;
    if text.is_some() {
        let mode = fs::metadata(path).map_err(fault("read", path))?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TrustError::Exposed { path: path.to_owned(), mode });
        }
    }
    Ok(text)
}

/// Writes a file so that after a crash either all of it is there, or nothing.
pub fn write(path: &Path, content: &str, mode: u32) -> Result<(), TrustError> {
    let fresh = fresh_name(path);
    let written = write_and_rename(&fresh, path, content, mode);
    if written.is_err() {
        // Best effort: the name of the rename's source means nothing to anyone else.
        let _ = fs::remove_file(&fresh);
    }
    written.map_err(fault("write", path))
}

fn write_and_rename(fresh: &Path, path: &Path, content: &str, mode: u32) -> io::Result<()> {
    // A leftover of a crash has the same name; create_new below must not meet it.
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(fresh)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fail::point("file-written");
    fs::rename(fresh, path)?;
    fail::point("file-renamed");
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn fresh_name(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// A fault at a file.
pub fn fault(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TrustError {
    move |source| TrustError::File { operation, path: path.to_owned(), source }
}
