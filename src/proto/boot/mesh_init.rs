//! The configuration of mesh-init, the first program of a node whose image is of kind `alpine`. It
//! is part of the public overlay, so all boots of a generation share it.

use meshd_types::{BundleName, Digest, ImageName};
use serde::{Deserialize, Serialize};

/// Path of the program on a node, mode 0755: `stage1` under another name.
pub const MESH_INIT_PROGRAM: &str = "/sbin/mesh-init";
/// Path of [`MeshInitConfig`] on a node.
pub const MESH_INIT_CONFIG_FILE: &str = "/etc/meshd/mesh-init.json";
/// Path of the list of packages on a node, one in each line.
pub const PACKAGES_FILE: &str = "/etc/meshd/packages";
/// Folder on a node with the mounted bundles, each below its name.
pub const BUNDLES_FOLDER: &str = "/opt/bundles";
/// Version of [`MeshInitConfig`].
pub const MESH_INIT_VERSION: u16 = 1;

/// What an Alpine node fetches and mounts. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshInitConfig {
    /// [`MESH_INIT_VERSION`].
    pub version: u16,
    /// Image of the overlay.
    pub image: ImageName,
    /// Squashfs with the kernel's modules.
    pub modloop: FetchedFile,
    /// Layers of the profile's bundles, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles: Vec<FetchedBundle>,
}

/// A file that the central node serves by its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedFile {
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// The layer of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedBundle {
    pub name: BundleName,
    #[serde(flatten)]
    pub layer: FetchedFile,
}
