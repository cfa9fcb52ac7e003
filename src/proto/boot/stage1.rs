//! The configuration of stage 1, the first program of a node whose image is of kind `root`.

use meshd_types::{BootSessionId, Digest, MacAddr, NodeId};
use serde::{Deserialize, Serialize};

/// Path of the program in the initramfs, mode 0755.
pub const STAGE1_PROGRAM: &str = "/meshd/stage1";
/// Path of the overlay in the initramfs: the members that an Alpine node gets as its apkovl.
pub const STAGE1_OVERLAY_FILE: &str = "/meshd/overlay.tar.gz";
/// Path of [`Stage1Config`] in the initramfs.
pub const STAGE1_CONFIG_FILE: &str = "/meshd/stage1.json";
/// Version of [`Stage1Config`].
pub const STAGE1_VERSION: u16 = 1;

/// Configuration of stage 1 for one boot. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage1Config {
    /// [`STAGE1_VERSION`].
    pub version: u16,
    pub node: NodeId,
    /// NIC that the machine boots from.
    pub mac: MacAddr,
    pub session: BootSessionId,
    pub root: RootSource,
    /// Size of the writable layer above the root, in bytes.
    pub upper_bytes: u64,
    /// URL of the report of a failed boot. Stage 1 appends `?session=ID&reason=TEXT`.
    pub failed_url: String,
    /// Time of delivery, in seconds since 1970.
    pub time: i64,
}

/// The root file system: a squashfs, followed by its dm-verity tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSource {
    /// Stage 1 tries them in this order.
    pub urls: Vec<String>,
    /// Digest of the whole file.
    pub digest: Digest,
    /// Size of the whole file, in bytes.
    pub size: u64,
    pub verity: VeritySpec,
}

/// Parameters of a dm-verity tree with SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VeritySpec {
    /// Root hash of the tree.
    pub root_hash: Digest,
    /// Salt in hexadecimal; empty for none.
    pub salt: String,
    /// Position of the tree, or of the superblock before it, in bytes.
    pub hash_offset: u64,
    /// Size of data and hash blocks, in bytes.
    pub block_size: u32,
    /// Number of data blocks.
    pub data_blocks: u64,
}
