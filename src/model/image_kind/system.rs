//! The systems that nodes run.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What the overlays of a node configure: its service manager and its files.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Alpine with OpenRC: each image of kind `alpine`, and root images of Alpine.
    Alpine,
    /// A root image with systemd.
    #[default]
    Systemd,
}

impl System {
    pub const ALL: [System; 2] = [System::Alpine, System::Systemd];

    /// Returns the word in `overlay.toml` and in templates.
    pub fn as_str(self) -> &'static str {
        match self {
            System::Alpine => "alpine",
            System::Systemd => "systemd",
        }
    }

    /// Returns the folder of an overlay with files for this system alone.
    pub fn rootfs(self) -> &'static str {
        match self {
            System::Alpine => "rootfs.alpine",
            System::Systemd => "rootfs.systemd",
        }
    }

    /// Returns the folder of an overlay with its expected rendering.
    pub fn golden(self) -> &'static str {
        match self {
            System::Alpine => "golden",
            System::Systemd => "golden.systemd",
        }
    }

    /// Returns whether a manifest may leave the system out: root images had systemd before others
    /// could be built.
    pub(super) fn is_default(&self) -> bool {
        *self == System::default()
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
