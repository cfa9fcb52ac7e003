//! What of virtual machines goes over the link. The central node says the whole wish for a machine, the node the whole state of all: each
//! may be said again at any time, and after every welcome is.

use super::{VmReport, VmSpec};
use crate::id::SystemUuid;
use serde::{Deserialize, Serialize};

/// Most virtual machines of one node.
pub const MAX_VMS: usize = 256;

/// What the central node wants of one virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmOrder {
    /// Which.
    pub uuid: SystemUuid,
    /// What of it.
    pub want: VmWant,
}

/// How a virtual machine shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "want", rename_all = "snake_case")]
pub enum VmWant {
    /// It shall run. One that runs, or waits for its restart, is left alone; one that is off or failed is started if `start` is another
    /// number than that of the order by which it was started last.
    Run {
        /// What it is.
        spec: Box<VmSpec>,
        /// Counts the operator's starts and restarts of it; a machine that runs by an older number is stopped and started again.
        start: u32,
        /// Seconds that a restart leaves the guest to end by itself.
        grace_s: u32,
    },
    /// It shall be off; what it wrote stays.
    Stop {
        /// Seconds that the guest has to end by itself.
        grace_s: u32,
    },
    /// It shall be gone with everything it has on the node; answered by [`VmNews::Released`], also where it is not there.
    Release,
}

/// What a node tells of its virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum VmNews {
    /// All of them, at most [`MAX_VMS`]: after each welcome, and whenever one has changed.
    All {
        /// By UUID.
        vms: Vec<VmReport>,
    },
    /// Nothing of it is on this node any more.
    Released {
        /// Which.
        uuid: SystemUuid,
    },
    /// Something of it stays; the order is to be given again.
    ReleaseBlocked {
        /// Which.
        uuid: SystemUuid,
        /// What, and why.
        reason: String,
    },
}
