//! Events, actions and stored state of [`super::vm_state_machine`].

use meshd_proto::vm::VmFailure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    Start,
    /// Shut the guest down; kill it after `grace`.
    Stop {
        grace: Duration,
    },
    /// Shut the guest down, kill it after `grace`, then start it again.
    Restart {
        grace: Duration,
    },
    /// Kill the guest at once.
    Discard,
    /// The node refused the start.
    Refused(VmFailure),
    /// QEMU was not started.
    LaunchFailed(VmFailure),
    /// QEMU runs, but its guest cannot start.
    GuestStartFailed(VmFailure),
    GuestRunning,
    Paused {
        reason: String,
        resumable: bool,
    },
    Resumed,
    /// QEMU reported why it is about to end.
    ShuttingDown(ShutdownCause),
    Ended {
        /// Exit code or signal, as a predicate: "ended with exit code 1".
        exit: String,
        /// Last lines of its log.
        log: Vec<String>,
    },
    /// The deadline of the state may have passed.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownCause {
    Guest,
    Panic,
    /// Something other than the guest ended it.
    Outside {
        /// QEMU's `ShutdownCause`.
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmAction {
    /// Check resources, make files, start QEMU.
    Launch,
    Resume,
    /// Press the ACPI power button.
    PowerDown,
    /// Send SIGTERM.
    Terminate,
    /// Send SIGKILL.
    Kill,
}

/// The state that outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartState {
    /// The desired state is running.
    pub should_run: bool,
    /// The guest ran since the last start.
    pub guest_ran: bool,
    /// Automatic restarts in a row.
    pub restarts: u32,
    /// Cause of the last failure or restart.
    pub failure: Option<VmFailure>,
}
