//! One part of an image.

use crate::fleet::Stage;
use meshd_types::Digest;
use serde::{Deserialize, Serialize};

/// Digest and length of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// SHA-256, padding included.
    pub digest: Digest,
    /// Length in bytes.
    pub size: u64,
}

/// A file that a booting machine fetches by digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePart {
    /// Name in URLs and in boot scripts.
    pub name: &'static str,
    pub blob: Blob,
    pub usage: PartUse,
    /// Stage of the boot that a complete fetch reaches.
    pub stage: Stage,
}

/// Who loads a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartUse {
    /// The loader, as the kernel.
    Kernel,
    /// The loader, as an initrd.
    Initrd,
    /// The running node, which verifies it by the digest in its overlay.
    Fetched,
}
