//! Reads the public part of a node's overlay back from its archive.

use crate::catalog::overlay::package_mode;
use crate::overlay::{Kind, RenderedFile};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use meshd_types::{Digest, SafePath};
use std::io::{self, Read as _};

/// Maximum unpacked size of an archive, in bytes: four times the size of an overlay with the agent.
const MAX_UNPACKED: u64 = 128 << 20;

/// Reads all entries of a gzip-compressed tar, ordered by path. The archive does not contain their
/// origins.
///
/// # Errors
/// The archive is invalid or truncated, or unpacks to more than 128 MiB.
pub fn read(targz: &[u8]) -> io::Result<Vec<RenderedFile>> {
    let mut archive = tar::Archive::new(MultiGzDecoder::new(targz).take(MAX_UNPACKED));
    let mut files = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let header = entry.header();
        let mode = header.mode()?;
        let owner = (header.uid()?, header.gid()?);
        let path = String::from_utf8_lossy(&entry.path_bytes()).trim_end_matches('/').to_owned();
        let path = SafePath::new(&path).map_err(io::Error::other)?;
        let (digest, kind, size) = match header.entry_type() {
            tar::EntryType::Directory => (Digest::of(b""), Kind::Directory, 0),
            tar::EntryType::Symlink => {
                let target = String::from_utf8_lossy(&entry.link_name_bytes().unwrap_or_default())
                    .into_owned();
                (Digest::of(target.as_bytes()), Kind::Link(target), 0)
            }
            _ => {
                let mut bytes = Vec::new();
                let size = entry.read_to_end(&mut bytes)? as u64;
                (Digest::of(&bytes), Kind::File(Bytes::from(bytes)), size)
            }
        };
        // The mode of a folder above a file is no part of a rendering.
        if kind == Kind::Directory && package_mode(path.relative()) == Some(mode) {
            continue;
        }
        files.push(RenderedFile { path, kind, mode, owner, origins: Vec::new(), digest, size });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
