//! Phases of a node. The diagram shows all permitted transitions.
//!
//! ```text
//!             approve              boot            enrol, link              checks pass
//! discovered ────────▶ approved ────────▶ booting ────▶ enrolling ────────────────────▶ online
//!  │    ▲                 ▲                ▲  ▲           ▲ │  ▲ └─ checks fail ─▶ degraded ◀─▶ ┘│
//!  │    │ reject          │ approve        │  └─ boot: from any phase on this line, and offline ─┤
//!  ▼    │                 │                │              │ │  └── link ─────────────────────────┤
//! rejected ───────────────┘             offline ◀─ silent ─│─┴─────────────────────────────────┘
//!                                          └──── link ────┘
//! draining ◀─ drain ── online, degraded, enrolling; ── drained ──▶ maintenance ── resume ──▶ degraded (offline if not linked)
//!   A draining node that is silent becomes offline. It continues to drain when it links again (`Node::drains`).
//! maintenance ◀─ maintenance ── enrolling, degraded, online, offline
//! enrolling ◀─ enrol, link ── approved
//! quarantined ◀─ quarantine ── any; ── release ──▶ approved, or discovered if it never was approved
//! rebuilding ◀─ rebuild ── online, degraded, enrolling, offline
//! removed ◀─ remove ── any; a removed machine that boots is discovered again
//! ```
//! Faults are conditions, not phases. A node becomes `enrolling` when it receives a certificate, or
//! when it links with a valid one. It stays `enrolling` until it reports checks, because checks
//! that have not run are not failures.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use strum::VariantArray as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    /// Not approved yet: holds no credentials.
    Discovered,
    /// Approved; has not booted since.
    Approved,
    Rejected,
    Booting,
    /// Has a certificate of this boot; no check results yet.
    Enrolling,
    /// Linked, and a check fails.
    Degraded,
    /// Linked, all checks pass: may receive work.
    Online,
    /// Takes no new work, finishes running work.
    Draining,
    /// Taken out of service by an operator.
    Maintenance,
    /// No message for longer than `offline_after`.
    Offline,
    /// Does not boot until an operator releases it.
    Quarantined,
    /// Being replaced by a rollout.
    Rebuilding,
    /// Removed; only the record remains.
    Removed,
}

/// An event that may change the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseChange {
    /// Approved by operator, rule or policy.
    Approve,
    Reject,
    /// Requested its boot script.
    Boot,
    /// Got a certificate.
    Enrol,
    /// Linked, no check results yet.
    LinkUp,
    ChecksPass,
    ChecksFail,
    /// No message for `offline_after`.
    Silent,
    Drain,
    /// All work has ended, or an operator does not wait for it.
    Drained,
    Resume,
    Quarantine,
    /// Release from quarantine.
    Release,
    /// Release from quarantine of a node that was never approved.
    ReleaseUnknown,
    /// A rollout begins.
    Rebuild,
    Remove,
    /// A removed machine boots again.
    Rediscover,
}

/// The result of a permitted change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    To(Phase),
    Stay,
}

/// The change is not permitted in this phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node that is {from} cannot {change}")]
pub struct UnlawfulTransition {
    pub from: Phase,
    pub change: PhaseChange,
}

meshd_types::hints!(UnlawfulTransition {
    UnlawfulTransition { change: PhaseChange::Reject, .. } => "take the node out of service: `meshd node quarantine NODE`, or remove it: `meshd node remove NODE`";
    UnlawfulTransition { change: PhaseChange::Resume, .. } => "`meshd node drain NODE` takes a node to maintenance, from which it resumes";
});

impl Phase {
    /// All phases in the order of the diagram.
    pub const ALL: [Phase; Phase::VARIANTS.len()] =
        *Phase::VARIANTS.first_chunk().expect("the same length");

    /// Returns the result of a change.
    pub fn apply(self, change: PhaseChange) -> Result<Transition, UnlawfulTransition> {
        use Phase as P;
        use PhaseChange as C;
        let to = match (self, change) {
            (P::Discovered | P::Rejected, C::Approve) => P::Approved,
            (P::Discovered | P::Approved, C::Reject) => P::Rejected,
            (P::Approved | P::Enrolling | P::Degraded | P::Online | P::Offline, C::Boot) => {
                P::Booting
            }
            (P::Approved | P::Booting, C::Enrol) => P::Enrolling,
            // After an enrolment the node is `enrolling` already when it links.
            (P::Approved | P::Booting | P::Enrolling | P::Offline | P::Online, C::LinkUp) => {
                P::Enrolling
            }
            (P::Enrolling | P::Degraded, C::ChecksPass) => P::Online,
            (P::Enrolling | P::Online, C::ChecksFail) => P::Degraded,
            (P::Enrolling | P::Degraded | P::Online | P::Draining, C::Silent) => P::Offline,
            (P::Enrolling | P::Degraded | P::Online, C::Drain) => P::Draining,
            (P::Draining | P::Maintenance, C::Drain) => return Ok(Transition::Stay),
            (P::Draining | P::Enrolling | P::Degraded | P::Online | P::Offline, C::Drained) => {
                P::Maintenance
            }
            (P::Maintenance, C::Drained) => return Ok(Transition::Stay),
            (P::Draining | P::Maintenance, C::Resume) => P::Degraded,
            (P::Quarantined, C::Release) => P::Approved,
            (P::Quarantined, C::ReleaseUnknown) => P::Discovered,
            (P::Enrolling | P::Degraded | P::Online | P::Offline, C::Rebuild) => P::Rebuilding,
            (P::Rebuilding, C::LinkUp) => P::Enrolling,
            (P::Removed, C::Rediscover) => P::Discovered,
            (P::Removed, _) => return Err(UnlawfulTransition { from: self, change }),
            (_, C::Remove) => P::Removed,
            (P::Quarantined, C::Quarantine) => return Ok(Transition::Stay),
            // A rejected node stays rejected; the arms below handle the other phases.
            (P::Rejected, C::Quarantine | C::Reject) => return Ok(Transition::Stay),
            (_, C::Quarantine) => P::Quarantined,
            // Reports of a node are permitted in any phase. Without an arrow in the diagram, the
            // phase stays.
            (_, C::Boot | C::Enrol | C::LinkUp | C::ChecksPass | C::ChecksFail | C::Silent) => {
                return Ok(Transition::Stay);
            }
            _ => return Err(UnlawfulTransition { from: self, change }),
        };
        Ok(Transition::To(to))
    }

    /// Returns true in the phases in which a node normally has a link.
    pub fn has_link(self) -> bool {
        use Phase::{Degraded, Draining, Enrolling, Maintenance, Online, Rebuilding};
        matches!(self, Enrolling | Degraded | Online | Draining | Maintenance | Rebuilding)
    }

    /// Returns true while the node may receive new work.
    pub fn accepts_work(self) -> bool {
        self == Phase::Online
    }

    /// Returns true while the node may receive tokens and certificates.
    pub fn is_admitted(self) -> bool {
        !matches!(self, Phase::Discovered | Phase::Rejected | Phase::Quarantined | Phase::Removed)
    }
}

as_str!(Phase);

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|phase| phase.as_str() == text);
        known.ok_or_else(|| {
            format!("`{text}` is not a phase; known: {}", Self::ALL.map(Phase::as_str).join(" "))
        })
    }
}

impl fmt::Display for PhaseChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PhaseChange::Approve => "be approved",
            PhaseChange::Reject => "be rejected",
            PhaseChange::Boot => "boot",
            PhaseChange::Enrol => "enrol",
            PhaseChange::LinkUp => "link up",
            PhaseChange::ChecksPass => "pass its checks",
            PhaseChange::ChecksFail => "fail its checks",
            PhaseChange::Silent => "fall silent",
            PhaseChange::Drain => "be drained",
            PhaseChange::Drained => "go into maintenance",
            PhaseChange::Resume => "resume",
            PhaseChange::Quarantine => "be quarantined",
            PhaseChange::Release | PhaseChange::ReleaseUnknown => "be released",
            PhaseChange::Rebuild => "be rebuilt",
            PhaseChange::Remove => "be removed",
            PhaseChange::Rediscover => "be discovered again",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(start: Phase, changes: &[PhaseChange]) -> Phase {
        changes.iter().fold(start, |phase, change| match phase.apply(*change) {
            Ok(Transition::To(next)) => next,
            Ok(Transition::Stay) => phase,
            Err(error) => panic!("{error}"),
        })
    }

    #[test]
    fn approved_node_reaches_online_through_every_phase() {
        use PhaseChange::*;
        assert_eq!(
            walk(Phase::Discovered, &[Boot]),
            Phase::Discovered,
            "a boot alone lets nobody in"
        );
        let mut phase = Phase::Discovered;
        for change in [Approve, Boot, Enrol, LinkUp, ChecksPass] {
            phase = walk(phase, &[change]);
            assert_ne!(
                phase,
                Phase::Degraded,
                "{change}: checks that have not run yet are not failures"
            );
        }
        assert_eq!(phase, Phase::Online);
        assert_eq!(walk(Phase::Enrolling, &[LinkUp, ChecksFail]), Phase::Degraded);
        assert_eq!(
            walk(Phase::Degraded, &[ChecksPass, Silent, LinkUp, ChecksPass, Boot]),
            Phase::Booting
        );
    }

    #[test]
    fn booting_node_without_heartbeat_stays_booting() {
        assert_eq!(walk(Phase::Booting, &[PhaseChange::Silent]), Phase::Booting);
    }

    #[test]
    fn phase_set_by_operator_is_unchanged_by_node_events() {
        use PhaseChange::*;
        for phase in [Phase::Maintenance, Phase::Quarantined, Phase::Rejected] {
            assert_eq!(walk(phase, &[Boot, Enrol, LinkUp, ChecksPass, Silent]), phase);
        }
    }

    #[test]
    fn removed_node_accepts_only_rediscovery() {
        for change in
            [PhaseChange::Approve, PhaseChange::LinkUp, PhaseChange::Boot, PhaseChange::Remove]
        {
            assert!(Phase::Removed.apply(change).is_err(), "{change}");
        }
        assert_eq!(walk(Phase::Removed, &[PhaseChange::Rediscover]), Phase::Discovered);
    }

    #[test]
    fn phase_round_trips_as_text() {
        for phase in Phase::ALL {
            assert_eq!(phase.as_str().parse(), Ok(phase));
            assert_eq!(serde_json::to_string(&phase).ok(), Some(format!("\"{phase}\"")));
        }
    }
}
