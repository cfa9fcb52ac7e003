//! Events, actions and stored state of [`super::vm_state_machine`].

use meshd_proto::vm::VmFailure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An event of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// It shall run.
    Start,
    /// It shall end: the guest is asked, and killed when `grace` is over.
    Stop {
        /// How long the guest may take.
        grace: Duration,
    },
    /// It shall end, and run again.
    Restart {
        /// How long the guest may take.
        grace: Duration,
    },
    /// It shall be gone, whatever the guest thinks.
    Discard,
    /// The node could not begin to run it.
    Refused(VmFailure),
    /// QEMU could not even be run.
    LaunchFailed(VmFailure),
    /// QEMU has answered, but its guest cannot be let run.
    CannotGo(VmFailure),
    /// QEMU has answered, and the guest runs.
    Answered,
    /// QEMU holds the guest.
    Paused {
        /// Why, in words.
        why: String,
        /// It can go on as if nothing had been.
        resumable: bool,
    },
    /// QEMU lets the guest go on.
    Resumed,
    /// QEMU says why it is about to end.
    ShutdownCause(ShutdownCause),
    /// The process has gone.
    Ended {
        /// How, in words.
        how: String,
        /// The last of its words.
        log: Vec<String>,
    },
    /// Time has passed.
    Tick,
}

/// What QEMU says before it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownCause {
    /// The guest switched itself off.
    Guest,
    /// The guest's kernel gave up.
    Panic,
    /// Somebody outside ended it.
    Outside {
        /// QEMU's word for it.
        reason: String,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmAction {
    /// Look whether the node can run it, make its files, run QEMU.
    Launch,
    /// Let the guest go on.
    Resume,
    /// Press the power button.
    PowerDown,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// What outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VmRecord {
    /// It shall run.
    pub wanted: bool,
    /// Its guest has run since it was started last.
    pub answered: bool,
    /// New starts in a row.
    pub restarts: u32,
    /// Why it failed, or was started again last.
    pub failure: Option<VmFailure>,
}
