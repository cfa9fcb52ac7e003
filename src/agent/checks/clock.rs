//! Compares the node's clock with the time in the overlay and with the central node's time.

use super::{Context, fail, pass, unproven, warn};
use crate::{
    files::{self, FileError},
    system::{Tree, machine},
};
use meshd_proto::Check;
use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};

/// Name of the file in the state folder.
const FILE: &str = "central-clock.json";
/// Offset in seconds that is a warning; it includes the delay of the link.
const WARN_S: u64 = 60;
/// Offset in seconds that is a failure: certificates, leases and logs of the rack no longer match.
const FAIL_S: u64 = 300;

/// The central node's time and this node's uptime at that moment. The node's clock is no reference:
/// it may be set at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CentralClock {
    central: Timestamp,
    uptime_ms: u64,
}

impl CentralClock {
    /// Returns a reference to the time that the central node just sent.
    pub fn new(tree: &Tree, central: Timestamp) -> Self {
        CentralClock { central, uptime_ms: uptime_ms(tree) }
    }

    /// Writes the reference for `mesh-agent doctor`, which has no link.
    pub fn store(&self, state_dir: &Path) -> Result<(), FileError> {
        files::replace_unsynced(
            &state_dir.join(FILE),
            &serde_json::to_string(self).unwrap_or_default(),
        )
    }

    /// Reads the reference of this boot's agent.
    pub fn load(state_dir: &Path) -> Option<Self> {
        serde_json::from_str(&files::read(&state_dir.join(FILE)).ok()?).ok()
    }

    /// Returns the central node's time now; `None` if the reference is of an earlier boot.
    pub fn now(&self, tree: &Tree) -> Option<Timestamp> {
        let since = uptime_ms(tree).checked_sub(self.uptime_ms)?;
        Some(self.central.after(Duration::from_millis(since)))
    }
}

fn uptime_ms(tree: &Tree) -> u64 {
    u64::try_from(machine::uptime(tree).as_millis()).unwrap_or(u64::MAX)
}

/// Checks that the clock is not before the delivery of the overlay, and close to the central
/// node's.
pub fn clock(context: &Context) -> Check {
    const NAME: &str = "clock";
    const REMEDY: &str = "set [dhcp].ntp, or replace the machine's clock battery";
    let issued_at = context.boot.issued_at;
    if context.now < issued_at {
        let detail = format!("{} is before the overlay's delivery at {issued_at}", context.now);
        return fail(NAME, detail, REMEDY);
    }
    let Some(central) = context.central else {
        let detail =
            "not before the overlay's delivery; the central node's time is unknown without a link";
        return unproven(NAME, detail, "wait for the link: see `meshd node logs`");
    };
    let (offset, relation) = match context.now.since(central) {
        Duration::ZERO => (central.since(context.now), "behind"),
        ahead => (ahead, "ahead of"),
    };
    let limit = context.config.checks.thresholds.clock_offset_s.unwrap_or(FAIL_S);
    let detail = format!(
        "{}.{} s {relation} the central node",
        offset.as_secs(),
        offset.subsec_millis() / 100
    );
    if offset > Duration::from_secs(limit) {
        let detail = format!("{detail}; at most {limit} s are allowed");
        return fail(NAME, detail, REMEDY);
    }
    if offset > Duration::from_secs(WARN_S) {
        return warn(NAME, detail, REMEDY);
    }
    pass(NAME, detail)
}
