//! Whole disks of a node that a VM uses: selection and wiping.

use super::{DiskIdentity, VmTextError, VolumeSource};
use meshd_types::{Digest, serde_as_text};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What becomes of the content of a disk when a machine leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRelease {
    /// It stays.
    Keep,
    /// All of it reads as zero afterwards.
    Wipe,
}

impl VolumeSource {
    /// True if its content goes when the machine leaves it. Where nothing is said, that of a slot goes, for whoever comes next is not
    /// known; a disk that was named stays as it is.
    pub fn is_wiped(&self) -> bool {
        match self {
            VolumeSource::Raw { on_release: Some(on_release), .. } => *on_release == OnRelease::Wipe,
            VolumeSource::Raw { disk, .. } => matches!(disk, RawDisk::Slot(_)),
            VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => false,
        }
    }

    /// The file of the central node that it stands on, or that is written onto it.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            VolumeSource::Qcow2 { digest, .. } | VolumeSource::Iso { digest } => Some(*digest),
            VolumeSource::Raw { digest, .. } => *digest,
        }
    }

    /// The disk of the node that it is, if it is one.
    pub fn disk(&self) -> Option<&RawDisk> {
        match self {
            VolumeSource::Raw { disk, .. } => Some(disk),
            VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => None,
        }
    }
}

/// Which whole disk of the node a machine gets. As text: an identity, `slot`, or `slot:` and the identity that it came to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RawDisk {
    /// The one of this WWID or serial number.
    Named(DiskIdentity),
    /// That of a slot which the machine has: the first such volume has that of its first unit. Known as long as it has a node.
    Slot(Option<DiskIdentity>),
}

impl RawDisk {
    /// The disk, where it is known.
    pub fn identity(&self) -> Option<&DiskIdentity> {
        match self {
            RawDisk::Named(disk) => Some(disk),
            RawDisk::Slot(disk) => disk.as_ref(),
        }
    }
}

impl FromStr for RawDisk {
    type Err = VmTextError;

    fn from_str(text: &str) -> Result<Self, VmTextError> {
        if text == SLOT {
            return Ok(RawDisk::Slot(None));
        }
        match text.strip_prefix(SLOT).and_then(|rest| rest.strip_prefix(':')) {
            Some(disk) => Ok(RawDisk::Slot(Some(disk.parse()?))),
            None => Ok(RawDisk::Named(text.parse()?)),
        }
    }
}

impl fmt::Display for RawDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawDisk::Named(disk) => disk.fmt(f),
            RawDisk::Slot(None) => f.write_str(SLOT),
            RawDisk::Slot(Some(disk)) => write!(f, "{SLOT}:{disk}"),
        }
    }
}

serde_as_text!(RawDisk);

/// The word for the disk of a slot.
pub(super) const SLOT: &str = "slot";
