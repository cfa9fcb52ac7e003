//! Bounds of the sources of a root.

/// Maximum number and size of what the sources contain, all layers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of all archives.
    pub entries: u64,
    /// Bytes of all files, holes included, and of each unpacked archive.
    pub bytes: u64,
}

/// A large system has 300,000 files and 10 GiB. The squashfs of more would not fit into the memory
/// of a node.
pub(super) const LIMITS: Limits = Limits { entries: 1_000_000, bytes: 16 << 30 };
