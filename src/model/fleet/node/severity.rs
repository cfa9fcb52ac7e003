//! How urgently a node needs an operator.

use super::{
    condition::{Condition, ConditionKind},
    phase::Phase,
};

/// How urgently a node needs an operator, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A sign of an attack, or two machines with one ID.
    Alarm,
    /// The node does not serve, and nobody ordered that.
    Down,
    Failing,
    /// The node waits for an operator or a boot, or it is out of service by order.
    Pending,
    Fine,
}

impl Severity {
    /// Returns the severity of a node: that of its phase, or of its most urgent condition.
    pub fn of(phase: Phase, conditions: &[Condition]) -> Self {
        let by_phase = match phase {
            Phase::Offline | Phase::Quarantined => Severity::Down,
            Phase::Degraded => Severity::Failing,
            Phase::Online => Severity::Fine,
            // Only a record is left.
            Phase::Removed => return Severity::Fine,
            Phase::Discovered
            | Phase::Approved
            | Phase::Rejected
            | Phase::Booting
            | Phase::Enrolling
            | Phase::Draining
            | Phase::Maintenance
            | Phase::Rebuilding => Severity::Pending,
        };
        let by_conditions =
            conditions.iter().map(|condition| Severity::of_condition(condition.kind));
        by_conditions.fold(by_phase, Severity::min)
    }

    pub fn of_condition(kind: ConditionKind) -> Self {
        match kind {
            ConditionKind::IdCollision
            | ConditionKind::CapabilityReplayed
            | ConditionKind::BootImpersonated
            | ConditionKind::RelayPortChanged
            | ConditionKind::CertificateReplaced => Severity::Alarm,
            ConditionKind::BootStalled | ConditionKind::BootLoop => Severity::Down,
            ConditionKind::HardwareChanged
            | ConditionKind::OverlayMissing
            | ConditionKind::Drift
            | ConditionKind::UnitDrift
            | ConditionKind::StaleCa
            | ConditionKind::CheckFailed
            | ConditionKind::ImageMissing
            | ConditionKind::RenderFailed => Severity::Failing,
            // They wait for the next boot or for a quiet hour.
            ConditionKind::RebootRequired
            | ConditionKind::WeakIdentity
            | ConditionKind::AgentOutdated => Severity::Fine,
        }
    }

    /// The one definition of a node that needs attention: counts, lists and filters use it.
    pub fn needs_attention(self) -> bool {
        self <= Severity::Failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Timestamp;

    fn condition(kind: ConditionKind) -> Condition {
        Condition { kind, since: Timestamp::EPOCH, detail: String::new() }
    }

    #[test]
    fn every_alarm_is_an_alarm_and_the_worst_condition_counts() {
        for kind in ConditionKind::ALARMS {
            assert_eq!(
                Severity::of(Phase::Online, &[condition(kind)]),
                Severity::Alarm,
                "{kind:?}"
            );
        }
        let both = [ConditionKind::RebootRequired, ConditionKind::CheckFailed].map(condition);
        assert_eq!(Severity::of(Phase::Online, &both), Severity::Failing);
        assert_eq!(Severity::of(Phase::Offline, &both), Severity::Down);
        let alarm = [condition(ConditionKind::IdCollision)];
        assert_eq!(Severity::of(Phase::Removed, &alarm), Severity::Fine, "only a record is left");
    }

    #[test]
    fn phases_that_nobody_ordered_need_attention() {
        let phases = Phase::ALL.into_iter();
        let phases: Vec<_> =
            phases.filter(|phase| Severity::of(*phase, &[]).needs_attention()).collect();
        assert_eq!(phases, [Phase::Degraded, Phase::Offline, Phase::Quarantined]);
    }
}
