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
    /// The program failed, or was killed at its limit.
    Failed(String),
    /// Several runs of a gate had different outcomes.
    Mixed(String),
    /// The program cannot be started, or was ended by a signal: it says nothing of the node.
    Unable(String),
}

impl ProgramOutcome {
    /// True if the same gate need not run once more.
    pub fn ends_runs(&self) -> bool {
        matches!(self, ProgramOutcome::NotYet(_) | ProgramOutcome::Unable(_))
    }

    /// Combines the outcomes of several runs on one boot. A run that wants to be asked later does
    /// not take back the failure of an earlier one.
    pub fn of_runs(runs: &[ProgramOutcome]) -> ProgramOutcome {
        let unable = runs.iter().find(|run| matches!(run, ProgramOutcome::Unable(_)));
        let failure = runs.iter().rev().find_map(|run| match run {
            ProgramOutcome::Failed(why) | ProgramOutcome::Mixed(why) => Some(why),
            _ => None,
        });
        let not_yet = runs.iter().find(|run| matches!(run, ProgramOutcome::NotYet(_)));
        let passed = runs.iter().filter(|run| **run == ProgramOutcome::Passed).count();
        match (unable, failure) {
            (Some(unable), _) => unable.clone(),
            (None, None) => not_yet.cloned().unwrap_or(ProgramOutcome::Passed),
            (None, Some(why)) if passed == 0 && not_yet.is_none() => {
                ProgramOutcome::Failed(why.clone())
            }
            (None, Some(why)) => {
                ProgramOutcome::Mixed(format!("it passed {passed} of {} runs: {why}", runs.len()))
            }
        }
    }
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
    /// The gate did not run to an end.
    Unable,
}

as_str!(GateVerdict);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_that_wants_to_be_asked_later_does_not_take_back_a_failure() {
        let failed = || ProgramOutcome::Failed("slow".to_owned());
        let not_yet = || ProgramOutcome::NotYet("warms up".to_owned());
        let unable = || ProgramOutcome::Unable("no such file".to_owned());
        let mixed =
            |passed: usize| ProgramOutcome::Mixed(format!("it passed {passed} of 2 runs: slow"));
        let passed = || ProgramOutcome::Passed;
        for (runs, expected) in [
            ([passed(), passed()], passed()),
            ([failed(), failed()], failed()),
            ([passed(), failed()], mixed(1)),
            ([failed(), not_yet()], mixed(0)),
            ([passed(), not_yet()], not_yet()),
            ([failed(), unable()], unable()),
        ] {
            assert_eq!(ProgramOutcome::of_runs(&runs), expected, "{runs:?}");
        }
    }
}
