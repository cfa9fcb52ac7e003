//! Whole disks of a node that a VM uses: selection and wiping.

use crate::disk::DiskIdentity;
use meshd_types::{ParseError, serde_as_text};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The action on the content of a disk when its VM is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum OnRelease {
    Keep,
    /// Overwrites or discards the whole disk; it reads as zero afterwards.
    Wipe,
}

/// The disk of the node for a raw volume. As text: an identity, `slot`, or `slot:IDENTITY` after
/// placement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RawDisk {
    /// The disk with this WWID or serial number.
    Named(DiskIdentity),
    /// The disk of a slot: the n-th such volume gets that of the n-th unit. Known only while the VM
    /// is placed.
    Slot(Option<DiskIdentity>),
}

impl RawDisk {
    /// Returns the identity, if known.
    pub fn identity(&self) -> Option<&DiskIdentity> {
        match self {
            RawDisk::Named(disk) => Some(disk),
            RawDisk::Slot(disk) => disk.as_ref(),
        }
    }
}

impl FromStr for RawDisk {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
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

/// Keyword for the disk of a slot.
const SLOT: &str = "slot";
