//! Records which disks an owner has and how far they are used, in one file of the owner. Therefore
//! an image is written once, and a disk that the owner never used is not wiped.

use crate::files;
use meshd_proto::{DiskIdentity, DiskUse};
use meshd_types::Digest;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::Path};

/// A disk of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnershipMarker {
    pub disk: DiskIdentity,
    /// The image that is written to the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    pub state: DiskUse,
    /// Content of the disk before it had this owner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
}

impl OwnershipMarker {
    /// Returns true if both markers are for the same disk and image.
    pub fn is_for_same_disk(&self, other: &OwnershipMarker) -> bool {
        (&self.disk, self.digest) == (&other.disk, other.digest)
    }
}

/// The markers of one owner, by the name that the owner gives the disk.
pub type OwnershipMarkers = BTreeMap<String, OwnershipMarker>;

/// Reads the markers of an owner. A damaged file is logged and has no markers.
pub fn read(file: &Path) -> OwnershipMarkers {
    // Without a file the owner has no disks yet.
    let Ok(text) = files::read(file) else { return OwnershipMarkers::new() };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::error!(file = %file.display(), %error, "invalid ownership markers: the state of the disks is lost");
        OwnershipMarkers::new()
    })
}

/// Records a marker before its state takes effect. The recorded former content of the same disk and
/// image stays. The folder of the file must exist. After an error the disk must not be used.
pub fn record(file: &Path, name: &str, marker: OwnershipMarker) -> io::Result<()> {
    let mut markers = read(file);
    let known = markers.get(name).filter(|known| known.is_for_same_disk(&marker));
    let before = known.map_or(marker.before, |known| known.before.clone());
    let marker = OwnershipMarker { before, ..marker };
    if markers.get(name) == Some(&marker) {
        return Ok(());
    }
    markers.insert(name.to_owned(), marker);
    let text = serde_json::to_string(&markers).map_err(io::Error::other)?;
    files::replace(file, &text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(disk: &str, state: DiskUse, before: &[&str]) -> OwnershipMarker {
        let before = before.iter().map(|text| (*text).to_owned()).collect();
        OwnershipMarker { disk: disk.parse().expect("an identity"), digest: None, state, before }
    }

    #[test]
    fn former_content_stays_while_disk_and_image_are_the_same() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("disks.json");
        assert!(read(&file).is_empty());
        record(&file, "data", marker("eui.1", DiskUse::Begun, &["old"])).expect("written");
        record(&file, "data", marker("eui.1", DiskUse::Done, &["half an image"])).expect("written");
        assert_eq!(read(&file)["data"], marker("eui.1", DiskUse::Done, &["old"]));
        record(&file, "data", marker("eui.2", DiskUse::Begun, &["other"])).expect("written");
        assert_eq!(read(&file)["data"], marker("eui.2", DiskUse::Begun, &["other"]));
        std::fs::write(&file, "{").expect("written");
        assert!(read(&file).is_empty(), "a damaged file has no markers");
    }
}
