//! Bounds of the sources of a root.

/// Maximum number and size of what the sources contain, all layers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of all archives.
    pub entries: u64,
    /// Bytes of all files, holes included, and of each unpacked archive.
    pub bytes: u64,
}

impl Limits {
    /// Bytes of all paths. A path of a Debian system has 67 on average.
    pub(super) fn path_bytes(self) -> u64 {
        self.entries.saturating_mul(512)
    }

    /// Names that all paths together pass, those of links included; a name counts once more for
    /// each 64 bytes of its path. A path of a Debian system passes 7.
    pub(super) fn passed_names(self) -> u64 {
        self.entries.saturating_mul(100)
    }
}

/// A large system has 300,000 files and 10 GiB. The squashfs of more would not fit into the memory
/// of a node.
pub(super) const LIMITS: Limits = Limits { entries: 1_000_000, bytes: 16 << 30 };
