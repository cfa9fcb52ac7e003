//! The configuration of a container's image, which its volume describes.

use meshd_types::{Architecture, Digest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The configuration of an image (OCI image specification 1.1, "Image Configuration"), with
/// resolved users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ContainerImage {
    /// Digest of the OCI manifest that the image was made from.
    pub manifest: Digest,
    #[schema(value_type = String)]
    pub arch: Architecture,
    /// Program and first arguments, which an order does not replace alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Further arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    pub working_dir: String,
    pub uid: u32,
    pub gid: u32,
}

impl ContainerImage {
    /// Returns true if the images differ in their manifests alone.
    pub(super) fn has_same_configuration(&self, other: &ContainerImage) -> bool {
        ContainerImage { manifest: other.manifest, ..self.clone() } == *other
    }

    /// Returns the program and its arguments; empty if the image names none.
    pub fn argv(&self) -> Vec<String> {
        self.entrypoint.iter().chain(&self.cmd).cloned().collect()
    }
}
