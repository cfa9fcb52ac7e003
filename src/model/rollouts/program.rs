//! Programs of the site that a rollout runs on the central node for each node.

use super::RolloutPolicy;
use meshd_types::ProgramName;
use serde::{Deserialize, Serialize};

/// When a program runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ProgramPoint {
    /// Before the node leaves service.
    BeforeLeave,
    /// After the soak time: the program decides whether the node is healthy.
    Gate,
    /// The node is back in service.
    AfterReturn,
}

as_str!(ProgramPoint);

impl ProgramPoint {
    /// Returns the program that a policy names for this point.
    pub fn program(self, policy: &RolloutPolicy) -> Option<&ProgramName> {
        match self {
            ProgramPoint::BeforeLeave => policy.before_leave.as_ref(),
            ProgramPoint::Gate => policy.gate.as_ref(),
            ProgramPoint::AfterReturn => policy.after_return.as_ref(),
        }
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramOutcome {
    Passed,
    /// The program wants to be asked again later.
    NotYet(String),
    /// The program failed, was killed at its limit, or cannot be started.
    Failed(String),
    /// Several runs of a gate had different outcomes.
    Mixed(String),
}

/// A program that ended. It counts until the step that takes it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedProgram {
    pub point: ProgramPoint,
    pub outcome: ProgramOutcome,
}

/// What the gate said of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum GateVerdict {
    Passed,
    Failed,
    /// Several runs had different outcomes.
    Mixed,
}

as_str!(GateVerdict);
