//! Files of keys and certificates, written atomically; private keys have mode 0600.

use super::TrustError;
use meshd_types::failpoint;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

/// Maximum size of a key or certificate file, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// Creates a folder with mode 0700.
pub fn make_folder(dir: &Path) -> Result<(), TrustError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fault("make the folder", dir))
}

/// Reads a file; `None` if it does not exist.
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

/// Reads a private key; refuses one that others can read.
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

/// Writes a file atomically and durably.
pub fn write(path: &Path, content: &str, mode: u32) -> Result<(), TrustError> {
    let temporary = path.with_extension("new");
    let written = write_and_rename(&temporary, path, content, mode);
    if written.is_err() {
        // The first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(fault("write", path))
}

fn write_and_rename(temporary: &Path, path: &Path, content: &str, mode: u32) -> io::Result<()> {
    // A leftover of a crash would conflict with create_new below.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    failpoint::point("file-written");
    fs::rename(temporary, path)?;
    failpoint::point("file-renamed");
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Creates the error of an operation on a file.
pub fn fault(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TrustError {
    move |source| TrustError::File { operation, path: path.to_owned(), source }
}
