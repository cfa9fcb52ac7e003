//! The configuration of stage 1, the first program of a node whose image is of kind `root`.

use meshd_types::{BootSessionId, Digest, MacAddr, NodeId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Path of the program in the initramfs, mode 0755.
pub const STAGE1_PROGRAM: &str = "/meshd/stage1";
/// Path of the overlay in the initramfs: the members that an Alpine node gets as its apkovl.
pub const STAGE1_OVERLAY_FILE: &str = "/meshd/overlay.tar.gz";
/// Path of [`Stage1Config`] in the initramfs.
pub const STAGE1_CONFIG_FILE: &str = "/meshd/stage1.json";
/// Path of [`RootReport`] on a node.
pub const ROOT_REPORT_FILE: &str = "/run/meshd/root.json";
/// Name of the process that serves a tethered root: its first argument.
pub const TETHER_PROCESS: &str = "@meshd-root";
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
    #[serde(default, skip_serializing_if = "RootMode::is_ram")]
    pub mode: RootMode,
    /// Size of the writable layer above the root, in bytes.
    pub upper_bytes: u64,
    /// URL of the report of a failed boot. Stage 1 appends `?session=ID&reason=TEXT`.
    pub failed_url: String,
    /// Time of delivery, in seconds since 1970.
    pub time: i64,
}

/// Where the bytes of a root are while its node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootMode {
    /// In memory.
    #[default]
    Ram,
    /// On servers: the node fetches each block when it is read.
    Tethered,
}

impl RootMode {
    /// All modes.
    pub const ALL: [RootMode; 2] = [RootMode::Ram, RootMode::Tethered];

    pub fn as_str(self) -> &'static str {
        match self {
            RootMode::Ram => "ram",
            RootMode::Tethered => "tethered",
        }
    }

    /// Returns true for the default.
    pub fn is_ram(&self) -> bool {
        *self == RootMode::Ram
    }
}

impl fmt::Display for RootMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What stage 1 leaves for the agent in [`ROOT_REPORT_FILE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootReport {
    pub mode: RootMode,
    /// Size of the whole file, in bytes.
    pub size: u64,
    /// Process that serves a tethered root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
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
