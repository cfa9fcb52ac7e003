//! Services that an overlay enables: those of OpenRC with their runlevels, and units of systemd.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// OpenRC services. Numbers are lines of `overlay.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    /// Services to enable, with their runlevels.
    pub enabled: BTreeMap<String, (Runlevel, usize)>,
    /// Services of earlier overlays to disable.
    pub removed: BTreeMap<String, usize>,
    /// Services that conflict with this overlay.
    pub conflicts: BTreeMap<String, usize>,
}

/// Kinds of units that an overlay can enable.
const UNIT_KINDS: [&str; 6] = [".mount", ".path", ".service", ".socket", ".target", ".timer"];

/// Units of systemd. Numbers are lines of `overlay.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Units {
    /// Units that the target `multi-user.target` wants.
    pub enabled: BTreeMap<String, usize>,
    /// Units that never start.
    pub masked: BTreeMap<String, usize>,
    /// Packages that the image must contain.
    pub packages: BTreeSet<String>,
}

/// Returns whether a text is the name of a unit that an overlay can enable.
pub fn is_unit(text: &str) -> bool {
    is_plain_name(text) && UNIT_KINDS.iter().any(|kind| text.ends_with(kind))
}

/// Runlevel of OpenRC; ordered by time of boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runlevel {
    Sysinit,
    Boot,
    Default,
    Shutdown,
}

impl Runlevel {
    pub const ALL: [Runlevel; 4] =
        [Runlevel::Sysinit, Runlevel::Boot, Runlevel::Default, Runlevel::Shutdown];

    /// Returns the name of the folder under `/etc/runlevels`.
    pub fn as_str(self) -> &'static str {
        match self {
            Runlevel::Sysinit => "sysinit",
            Runlevel::Boot => "boot",
            Runlevel::Default => "default",
            Runlevel::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for Runlevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns whether a package, service or module name needs no quoting in apk, OpenRC and modprobe.
pub fn is_plain_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=128).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"+._-".contains(c))
}

#[cfg(test)]
mod tests {
    use crate::catalog::overlay::{
        read_overlays,
        tests::{assert_reported, faults, one},
    };
    use std::fs;

    #[test]
    fn empty_unit_is_a_fault() {
        let manifest =
            "description = \"x\"\nsystems = [\"systemd\"]\n[systemd]\nunits = [\"x.service\"]\n";
        let paths = ["etc/systemd/system/x.service", "etc/systemd/system/y.timer"];
        let root = one(manifest, &paths);
        let set = |path: &str, text: &str| {
            fs::write(root.path().join("one/rootfs").join(path), text).expect("written");
        };
        set(paths[0], "");
        let expected =
            ["one/rootfs/etc/systemd/system/x.service: /etc/systemd/system/x.service is empty"];
        assert_reported(&faults(&root), &expected);
        set(paths[0], "[Unit]\n");
        assert!(read_overlays(root.path()).is_ok());
    }
}
