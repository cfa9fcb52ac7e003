//! What a rollout changes, and how many nodes at once.

use super::DailyWindow;
use crate::{
    fleet::LabelKey,
    operations::{DrainPolicy, NodeOrder},
};
use meshd_types::{GroupName, ImageName, ParseError, ProfileName, ProgramName, Timestamp};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

/// Maximum number of floors of one rollout.
pub const MAX_FLOORS: usize = 16;
/// Maximum of each timeout, in seconds: 30 days.
const MAX_TIMEOUT_S: u32 = 30 * 24 * 3600;
/// Maximum number of runs of a gate for one node.
const MAX_GATE_RUNS: u32 = 10;
/// Default time of one wave, in seconds.
const WAVE_TIMEOUT_S: u32 = 60 * 60;

/// A number of nodes, or a part of all nodes. As text: `4` or `10%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Count(u32),
    Percent(u8),
}

impl Amount {
    /// Returns the number of nodes; a fraction of a node counts as one.
    pub fn rounded_up(self, all: usize) -> usize {
        match self {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => (all * usize::from(percent)).div_ceil(100),
        }
    }

    /// Returns the number of nodes; a fraction of a node does not count.
    pub fn rounded_down(self, all: usize) -> usize {
        match self {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => all * usize::from(percent) / 100,
        }
    }
}

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let amount = match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|percent| *percent <= 100).map(Amount::Percent)
            }
            None => text.parse().ok().map(Amount::Count),
        };
        let hint = "write a number, such as 4, or a percentage, such as 10%";
        amount.ok_or_else(|| ParseError::of_text(text, "is not a number of nodes", hint))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Count(count) => write!(f, "{count}"),
            Amount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

meshd_types::serde_as_text!(Amount);

/// A capacity floor: at least so many nodes serve. As text: `4`, `80%` or `GROUP=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The group whose nodes count, also those outside of the rollout; `None` counts the nodes of
    /// the rollout.
    pub group: Option<GroupName>,
    pub serving: Amount,
}

impl FromStr for Floor {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once('=') {
            Some((group, serving)) => {
                Ok(Floor { group: Some(group.parse()?), serving: serving.parse()? })
            }
            None => Ok(Floor { group: None, serving: text.parse()? }),
        }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "{group}=")?;
        }
        write!(f, "{}", self.serving)
    }
}

meshd_types::serde_as_text!(Floor);

/// What a rollout does with the work of a node before it leaves service.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum WorkPolicy {
    /// The node takes no new work, and leaves when its work has ended.
    #[default]
    Drain,
    /// The node leaves when it has no work; until then it takes new work.
    Wait,
    /// The work is stopped.
    Stop,
    /// A node with work is left out.
    Skip,
}

as_str!(WorkPolicy);

/// What the nodes of a rollout change to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "to", rename_all = "snake_case")]
pub enum RolloutTarget {
    /// Each node reboots into what it boots next. Pins stay.
    Reboot,
    /// Each node is unpinned, and boots this profile as it is now.
    Profile { profile: ProfileName },
    /// Each node is pinned to this generation of its profile, or of itself: a prefix of its digest.
    Generation { generation: String },
    /// Each node is pinned to the newest generation of its profile with this version of an image: a
    /// prefix of its digest.
    Image { image: ImageName, version: String },
    /// Each node returns to what it ran before another rollout.
    Previous,
}

impl RolloutTarget {
    /// True if the rollout pins nodes.
    pub fn pins(&self) -> bool {
        matches!(self, RolloutTarget::Generation { .. } | RolloutTarget::Image { .. })
    }
}

impl fmt::Display for RolloutTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RolloutTarget::Reboot => f.write_str("reboot"),
            RolloutTarget::Profile { profile } => write!(f, "profile {profile}"),
            RolloutTarget::Generation { generation } => write!(f, "generation {generation}"),
            RolloutTarget::Image { image, version } => write!(f, "image {image}@{version}"),
            RolloutTarget::Previous => f.write_str("what ran before"),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// How a rollout proceeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct RolloutPolicy {
    /// Number of nodes of the first wave.
    pub canaries: u32,
    /// Number of nodes of each further wave; at least one.
    pub wave: Amount,
    /// Nodes leave service only together with nodes of the same value of this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<LabelKey>,
    /// No node leaves service if fewer nodes would serve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub floors: Vec<Floor>,
    /// Number of nodes that may fail; with one more, the rollout ends.
    pub max_failures: u32,
    /// Time from the reboot of a node to its health, in seconds.
    pub node_timeout_s: u32,
    /// Time of the whole rollout, in seconds; by default an hour for each wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_timeout_s: Option<u32>,
    /// Time for which a node must stay healthy, in seconds.
    pub soak_s: u32,
    pub workloads: WorkPolicy,
    /// Grace time of stopped work, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
    /// No node begins before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// Nodes begin only in this part of each day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<DailyWindow>,
    /// Program of the site that runs before a node leaves service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_leave: Option<ProgramName>,
    /// Program of the site that decides after the soak time whether a node is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<ProgramName>,
    /// Number of runs of the gate, which must have the same outcome.
    #[serde(skip_serializing_if = "is_one")]
    pub gate_runs: u32,
    /// A node that fails stays as it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_failed: bool,
    /// Program of the site that runs when a node is back in service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_return: Option<ProgramName>,
}

impl Default for RolloutPolicy {
    fn default() -> Self {
        RolloutPolicy {
            canaries: 1,
            wave: Amount::Percent(10),
            domain: None,
            floors: Vec::new(),
            max_failures: 0,
            node_timeout_s: 45 * 60,
            run_timeout_s: None,
            soak_s: 60,
            workloads: WorkPolicy::default(),
            grace_s: None,
            start_at: None,
            window: None,
            before_leave: None,
            gate: None,
            gate_runs: 1,
            keep_failed: false,
            after_return: None,
        }
    }
}

impl RolloutPolicy {
    /// Returns the order that takes a node out of service.
    pub(super) fn drain_order(&self) -> NodeOrder {
        let workloads = match self.workloads {
            WorkPolicy::Stop => DrainPolicy::Stop,
            _ => DrainPolicy::Wait,
        };
        NodeOrder::Drain { workloads, grace_s: self.grace_s }
    }

    /// Refuses values out of range.
    pub fn check(&self) -> Result<(), ParseError> {
        let refuse = |what: &str, hint: String| {
            Err(ParseError::new(format!("invalid rollout policy: {what}"), hint))
        };
        if matches!(self.wave, Amount::Count(0) | Amount::Percent(0)) {
            return refuse("a wave has no node", "use at least 1 or 1%".to_owned());
        }
        if self.floors.len() > MAX_FLOORS {
            return refuse("too many floors", format!("use at most {MAX_FLOORS}"));
        }
        let timeouts = [Some(self.node_timeout_s), self.run_timeout_s];
        if timeouts.into_iter().flatten().any(|seconds| seconds == 0 || seconds > MAX_TIMEOUT_S) {
            return refuse("a timeout is out of range", "use 1 second to 30 days".to_owned());
        }
        if self.soak_s >= self.node_timeout_s {
            let hint = "use a shorter soak time or a longer node timeout".to_owned();
            return refuse("the soak time is not shorter than the node timeout", hint);
        }
        if !(1..=MAX_GATE_RUNS).contains(&self.gate_runs) {
            let hint = format!("use 1 to {MAX_GATE_RUNS}");
            return refuse("the number of runs of the gate is out of range", hint);
        }
        if self.grace_s.is_some() && self.workloads != WorkPolicy::Stop {
            let hint = "stop the workloads, or omit the grace time".to_owned();
            return refuse("only stopped work has a grace time", hint);
        }
        Ok(())
    }

    /// Returns why no node may begin at this time; `None` if nodes may.
    pub fn closed(&self, now: Timestamp) -> Option<String> {
        if let Some(start) = self.start_at.filter(|start| now < *start) {
            return Some(format!("it starts at {start}"));
        }
        let window = self.window.filter(|window| !window.contains(now))?;
        Some(format!("its window is {window} UTC"))
    }

    /// Returns the programs of the site that the rollout runs.
    pub fn programs(&self) -> impl Iterator<Item = &ProgramName> {
        [&self.before_leave, &self.gate, &self.after_return].into_iter().flatten()
    }

    /// Returns the time of a rollout with so many waves.
    pub fn run_timeout(&self, waves: u32) -> Duration {
        let seconds = self.run_timeout_s.unwrap_or(WAVE_TIMEOUT_S.saturating_mul(waves.max(1)));
        Duration::from_secs(seconds.into())
    }
}
