//! Compares the node's clock with the time in the overlay and with the central node's time.

use super::{Context, unproven, verdict};
use crate::{
    files::{self, FileError},
    system::Tree,
};
use meshd_proto::{Check, CheckStatus};
use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};

/// Name of the file in the state folder.
const FILE: &str = "central-clock.json";
/// Beyond this offset somebody should look: what is told of a link takes its time, too.
const WARN_S: u64 = 60;
/// Beyond this one tickets, leases and logs of a rack do not go together any more, in seconds.
const FAIL_S: u64 = 300;

/// The central node's clock, and how long this kernel had been up then: its own clock may be set at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    central: Timestamp,
    uptime_ms: u64,
}

impl Reference {
    /// The central node has just said what time it is.
    pub fn new(tree: &Tree, central: Timestamp) -> Self {
        Reference { central, uptime_ms: uptime_ms(tree) }
    }

    /// For a doctor that has no link of its own.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, state_dir: &Path) -> Result<(), FileError> {
        files::replace_soon(&state_dir.join(FILE), &serde_json::to_string(self).unwrap_or_default())
    }

    /// What the agent of this boot wrote down.
    pub fn kept(state_dir: &Path) -> Option<Self> {
        serde_json::from_str(&files::read(&state_dir.join(FILE)).ok()?).ok()
    }

    /// The central node's clock now. `None` where this kernel is younger than what was written down.
    pub fn now(&self, tree: &Tree) -> Option<Timestamp> {
        let since = uptime_ms(tree).checked_sub(self.uptime_ms)?;
        Some(self.central.after(Duration::from_millis(since)))
    }
}

/// `/proc/uptime` counts in hundredths.
fn uptime_ms(tree: &Tree) -> u64 {
    let text = tree.read("/proc/uptime").unwrap_or_default();
    let (seconds, hundredths) =
        text.split(' ').next().and_then(|first| first.split_once('.')).unwrap_or((text.as_str(), "0"));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    number(seconds).saturating_mul(1000).saturating_add(number(hundredths).saturating_mul(10))
}

/// The clock was stepped to at least the time at which the overlay was delivered, and is not far from the central node's.
pub fn clock(context: &Context<'_>) -> Check {
    const NAME: &str = "clock";
    const REMEDY: &str = "set [dhcp].ntp, or replace the machine's clock battery";
    let issued_at = context.boot.issued_at;
    if context.now < issued_at {
        let detail = format!("{} is before the overlay's delivery at {issued_at}", context.now);
        return verdict(NAME, CheckStatus::Fail, detail, REMEDY);
    }
    let Some(central) = context.central else {
        let detail = "not before the overlay's delivery; no link has told the central node's time yet";
        return unproven(NAME, detail, "wait for the link: `rc-service mesh-agent status`");
    };
    let (offset, word) = match context.now.since(central) {
        Duration::ZERO => (central.since(context.now), "behind"),
        ahead => (ahead, "ahead of"),
    };
    let limit = context.config.checks.thresholds.clock_offset_s.unwrap_or(FAIL_S);
    let detail = format!("{}.{} s {word} the central node", offset.as_secs(), offset.subsec_millis() / 100);
    if offset > Duration::from_secs(limit) {
        let detail = format!("{detail}; at most {limit} s are allowed");
        return verdict(NAME, CheckStatus::Fail, detail, REMEDY);
    }
    if offset > Duration::from_secs(WARN_S) {
        return verdict(NAME, CheckStatus::Warn, detail, REMEDY);
    }
    verdict(NAME, CheckStatus::Pass, detail, "")
}
