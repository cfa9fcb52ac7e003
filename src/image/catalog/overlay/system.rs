//! The systems that an overlay can support.

use meshd_model::image_kind::ImageKindName;
use std::fmt;

/// What the overlays of a node configure: the service manager, and who installs packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum System {
    /// Alpine with OpenRC, which installs its packages at boot.
    Alpine,
    /// A root image with systemd, which contains its packages.
    Systemd,
}

impl System {
    pub const ALL: [System; 2] = [System::Alpine, System::Systemd];

    /// Returns the system of an image.
    pub fn of(kind: ImageKindName) -> Self {
        match kind {
            ImageKindName::Alpine => System::Alpine,
            ImageKindName::Root => System::Systemd,
        }
    }

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
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
