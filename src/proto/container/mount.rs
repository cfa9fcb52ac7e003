//! Volumes that a replica mounts, with the limits of their paths.

use super::faults::ReplicaFaults;
use meshd_types::Digest;
use serde::{Deserialize, Serialize};

/// Maximum number of mounted volumes. Each one takes a loop device of the node.
pub const MAX_MOUNTS: usize = 8;
/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 1024;
/// Maximum length of a name in a path, in bytes.
const MAX_NAME: usize = 255;
/// Folders that the node makes for each replica.
const RESERVED: [&str; 3] = ["dev", "proc", "sys"];

/// A volume that a replica sees as a folder, read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReplicaMount {
    /// SHA-256 of the volume, a squashfs file.
    pub volume: Digest,
    /// Size of the file in bytes.
    pub size: u64,
    /// Folder in the replica. It is made if the image does not have it.
    pub path: String,
}

/// Adds the faults of all mounts of a replica.
pub(super) fn add_faults(mounts: &[ReplicaMount], faults: &mut ReplicaFaults) {
    if mounts.len() > MAX_MOUNTS {
        let message = format!("{} mounted volumes", mounts.len());
        faults.add("mounts", message, format!("at most {MAX_MOUNTS}"));
    }
    for (index, mount) in mounts.iter().enumerate() {
        let shown = mount.path.escape_debug();
        if let Some(hint) = path_hint(&mount.path) {
            faults.add("mounts", format!("invalid path `{shown}`"), hint);
        }
        let contains = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let earlier = mounts[..index].iter().map(|earlier| earlier.path.as_str());
        let overlaps = |other: &&str| contains(other, &mount.path) || contains(&mount.path, other);
        if let Some(other) = earlier.into_iter().find(overlaps) {
            let message = format!("path `{shown}` overlaps `{}`", other.escape_debug());
            faults.add("mounts", message, "give each volume a separate folder");
        }
    }
}

/// Returns what is against a path.
fn path_hint(path: &str) -> Option<&'static str> {
    let Some(names) = path.strip_prefix('/') else {
        return Some("write an absolute path, such as /data");
    };
    let is_name = |name: &str| {
        !matches!(name, "" | "." | "..")
            && name.len() <= MAX_NAME
            && !name.contains(|c: char| c.is_control() || c == ' ')
    };
    if path.len() > MAX_PATH || !names.split('/').all(is_name) {
        return Some("write names and single slashes, without `.` and `..`, up to 1024 bytes");
    }
    let first = names.split('/').next().unwrap_or_default();
    RESERVED.contains(&first).then_some("use a folder outside /dev, /proc and /sys")
}
