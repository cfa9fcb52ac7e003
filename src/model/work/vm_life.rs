//! How a virtual machine stands, in one word.

use super::{Vm, VmWish};
use meshd_proto::vm::VmState;
use serde::{Deserialize, Serialize};

/// How it stands, wish and observation in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmLife {
    /// No node has it.
    Unplaced,
    /// It has a node that was not heard of it yet.
    Ordered,
    /// QEMU is being started.
    Starting,
    /// The guest runs.
    Running,
    /// Its node holds the guest, with the reason.
    Paused,
    /// It was asked to end.
    Stopping,
    /// It is started again after a delay.
    Waiting,
    /// It is off.
    Stopped,
    /// It is off, and nobody wanted that.
    Failed,
    /// Its node does not answer: it may run or not.
    Unreachable,
    /// Its record is of a backup: it may run there, elsewhere or not at all.
    Unconfirmed,
    /// Its node shall release it.
    Releasing,
    /// Its node cannot release it.
    ReleaseBlocked,
}

impl VmLife {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            VmLife::Unplaced => "unplaced",
            VmLife::Ordered => "ordered",
            VmLife::Starting => "starting",
            VmLife::Running => "running",
            VmLife::Paused => "paused",
            VmLife::Stopping => "stopping",
            VmLife::Waiting => "waiting",
            VmLife::Stopped => "stopped",
            VmLife::Failed => "failed",
            VmLife::Unreachable => "unreachable",
            VmLife::Unconfirmed => "unconfirmed",
            VmLife::Releasing => "releasing",
            VmLife::ReleaseBlocked => "release_blocked",
        }
    }
}

impl From<VmState> for VmLife {
    fn from(state: VmState) -> Self {
        match state {
            VmState::Starting => VmLife::Starting,
            VmState::Running => VmLife::Running,
            VmState::Paused => VmLife::Paused,
            VmState::Stopping => VmLife::Stopping,
            VmState::Waiting => VmLife::Waiting,
            VmState::Stopped => VmLife::Stopped,
            VmState::Failed => VmLife::Failed,
        }
    }
}

impl Vm {
    /// How it stands; `is_linked` says whether its node has a link.
    pub fn life(&self, is_linked: bool) -> VmLife {
        match (&self.place, &self.seen) {
            (None, _) => VmLife::Unplaced,
            (Some(_), _) if self.unconfirmed && self.wish == VmWish::Run => VmLife::Unconfirmed,
            (Some(_), _) if self.wish == VmWish::Release && self.trouble.is_some() => VmLife::ReleaseBlocked,
            (Some(_), _) if self.wish == VmWish::Release => VmLife::Releasing,
            (Some(_), Some(seen)) if !is_linked && seen.state.is_live() => VmLife::Unreachable,
            (Some(_), Some(seen)) => seen.state.into(),
            (Some(_), None) if self.wish == VmWish::Run => VmLife::Ordered,
            (Some(_), None) => VmLife::Stopped,
        }
    }
}
