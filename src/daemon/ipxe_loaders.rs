//! Reads the iPXE programs that firmware loads.

use super::DaemonError;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Loaders that must exist.
pub const REQUIRED_LOADERS: [&str; 3] = ["undionly.kpxe", "snponly.efi", "ipxe.efi"];
/// Maximum size of a loader, in bytes.
const MAX_BINARY: u64 = 64 * 1024 * 1024;

/// Returns the loaders of a folder by name.
pub(super) fn read_loaders(dir: &Path) -> Result<BTreeMap<String, Bytes>, DaemonError> {
    let mut loaders = BTreeMap::new();
    let mut missing = Vec::new();
    // Other files in the folder are ignored.
    let names: BTreeSet<&str> =
        meshd_dhcp::client_arch::loader_names().chain(REQUIRED_LOADERS).collect();
    for name in names {
        match read_bounded(&dir.join(name)) {
            Ok(bytes) => drop(loaders.insert(name.to_owned(), bytes)),
            Err(_) if REQUIRED_LOADERS.contains(&name) => missing.push(name),
            Err(_) => {}
        }
    }
    if missing.is_empty() {
        return Ok(loaders);
    }
    Err(DaemonError::Loaders { dir: dir.to_owned(), missing: missing.join(", ") })
}

fn read_bounded(path: &Path) -> std::io::Result<Bytes> {
    let bytes = meshd_config::files::read_regular(path, MAX_BINARY)?;
    if bytes.is_empty() {
        Err(std::io::Error::other("its size is 0 bytes"))
    } else {
        Ok(bytes.into())
    }
}
