//! Effects of orders and timeouts on a node.

use super::{
    condition::ConditionKind,
    phase::{Phase, PhaseChange, Transition, UnlawfulTransition},
    record::Node,
};
use meshd_types::{NodeId, Timestamp, failpoint};

/// A phase change: from, to.
type Changed = Option<(Phase, Phase)>;

/// Maximum number of replaced node IDs.
const MAX_FORMER: usize = 8;

impl Node {
    /// Applies a change. Returns old and new phase if they differ.
    pub fn change(&mut self, change: PhaseChange) -> Result<Changed, UnlawfulTransition> {
        let from = self.phase;
        match from.apply(change)? {
            Transition::Stay => Ok(None),
            Transition::To(to) => {
                self.phase = to;
                if change == PhaseChange::LinkUp && self.drains {
                    self.phase = Phase::Draining;
                }
                if matches!(
                    change,
                    PhaseChange::Drained | PhaseChange::Resume | PhaseChange::Quarantine
                ) {
                    self.drains = false;
                }
                Ok((self.phase != from).then_some((from, self.phase)))
            }
        }
    }

    /// Starts to drain the node. An offline period does not end the drain. An offline node stays
    /// offline and drains when it returns.
    pub fn drain(&mut self) -> Result<Changed, UnlawfulTransition> {
        if self.phase == Phase::Offline {
            self.drains = true;
            return Ok(None);
        }
        let changed = self.change(PhaseChange::Drain)?;
        self.drains = self.phase == Phase::Draining;
        Ok(changed)
    }

    /// Returns true unless the node is out of service or drains.
    pub fn serves(&self) -> bool {
        use Phase::{Draining, Maintenance, Quarantined, Rejected, Removed};
        !self.drains
            && !matches!(self.phase, Draining | Maintenance | Quarantined | Rejected | Removed)
    }

    /// Revokes all certificates.
    pub fn revoke(&mut self) {
        self.certificates.clear();
    }

    /// Quarantines the node until an operator releases it, and revokes its certificates.
    pub fn quarantine(&mut self, because: Option<String>) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Quarantine)?;
        if let Some((from, _)) = changed {
            self.quarantined_from = Some(from);
            self.quarantine_reason = because;
            self.revoke();
        }
        Ok(changed)
    }

    /// Ends the quarantine. A node that was not approved before stays unapproved.
    pub fn release(&mut self, now: Timestamp) -> Result<Changed, UnlawfulTransition> {
        let was_approved = self.quarantined_from.is_none_or(Phase::is_admitted);
        let changed = self.change(if was_approved {
            PhaseChange::Release
        } else {
            PhaseChange::ReleaseUnknown
        })?;
        (self.quarantined_from, self.quarantine_reason) = (None, None);
        self.released_at = Some(now);
        Ok(changed)
    }

    /// Rejects the node and revokes its certificates.
    pub fn reject(&mut self) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Reject)?;
        self.revoke();
        Ok(changed)
    }

    /// Deletes everything except the hardware identity. Earlier boots do not count for boot loops.
    pub fn remove(&mut self, now: Timestamp) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Remove)?;
        let discovered_at = self.discovered_at;
        let last_seen = self.last_seen;
        let initial =
            Node::discovered(self.basis.clone(), self.fingerprint.clone(), self.mac, discovered_at);
        *self = Node {
            phase: Phase::Removed,
            last_seen,
            released_at: Some(now),
            conditions: Vec::new(),
            ..initial
        };
        Ok(changed)
    }

    /// Returns the ID of the node and the IDs of nodes that it replaced.
    pub fn known_as(&self) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::once(self.id).chain(self.former.iter().copied())
    }

    /// Copies name, profile, variables, labels and replaced IDs of a replaced node. Override and
    /// pin are not copied, because they refer to boots of the other machine.
    pub fn take_over(&mut self, old: &Node) {
        if !old.has_generated_name() {
            self.name.clone_from(&old.name);
        }
        self.profile.clone_from(&old.profile);
        self.vars.clone_from(&old.vars);
        self.labels.clone_from(&old.labels);
        let former: Vec<NodeId> =
            std::iter::once(old.id).chain(old.former.iter().copied()).collect();
        self.former = former.into_iter().filter(|id| *id != self.id).take(MAX_FORMER).collect();
    }

    /// Copies the state of the same machine under its old ID. A running node becomes approved.
    pub fn take_over_identity(&mut self, old: &Node) {
        self.take_over(old);
        self.phase = match old.phase {
            Phase::Draining | Phase::Maintenance => Phase::Maintenance,
            phase if phase.is_admitted() => Phase::Approved,
            phase => phase,
        };
        self.quarantined_from = old.quarantined_from;
        self.quarantine_reason.clone_from(&old.quarantine_reason);
        self.released_at = old.released_at;
        self.relay_port.clone_from(&old.relay_port);
        self.is_local = old.is_local;
        self.units.clone_from(&old.units);
        self.boot_override.clone_from(&old.boot_override);
    }

    /// Accepts the present hardware and returns the conditions to clear. The known switch port
    /// changes only if the operator confirms by `moved` that the node was moved. The alarm alone
    /// does not distinguish a moved node from an attacker.
    pub fn acknowledged(&mut self, moved: bool) -> Vec<ConditionKind> {
        self.approve_units();
        self.conflicting_machines.clear();
        if moved || !failpoint::defends("relay-port-stays") {
            // The next enrolment records the new port.
            self.relay_port = None;
            self.is_local = false;
        }
        let kinds =
            [ConditionKind::UnitDrift, ConditionKind::HardwareChanged, ConditionKind::IdCollision];
        let kinds = kinds.into_iter().chain(ConditionKind::ALARMS);
        kinds
            .filter(|kind| self.conditions.iter().any(|condition| condition.kind == *kind))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Certificate, RelayPort};
    use meshd_types::Digest;

    fn walk(node: &mut Node, changes: &[PhaseChange]) -> Phase {
        for change in changes {
            node.change(*change).unwrap_or_else(|error| panic!("{error}"));
        }
        node.phase
    }

    #[test]
    fn release_of_an_unapproved_node_does_not_approve_it() {
        let mut unknown = Node::fixture(1);
        assert!(unknown.quarantine(None).is_ok_and(|changed| changed.is_some()));
        assert!(unknown.release(Timestamp::EPOCH).is_ok());
        assert_eq!(unknown.phase, Phase::Discovered);
        let mut known = Node::fixture(1);
        walk(&mut known, &[PhaseChange::Approve, PhaseChange::Boot]);
        known.certificates = vec![Certificate::new("0a", Digest::of(b"key"))];
        assert!(known.quarantine(Some("smells".to_owned())).is_ok());
        assert!(known.certificates.is_empty(), "its certificates are revoked");
        assert!(
            known.quarantine(None).is_ok_and(|changed| changed.is_none()),
            "quarantined already"
        );
        assert_eq!(known.quarantine_reason.as_deref(), Some("smells"));
        assert!(!known.phase.is_admitted(), "no token while it is quarantined");
        assert!(known.release(Timestamp::EPOCH).is_ok());
        assert_eq!((known.phase, known.released_at), (Phase::Approved, Some(Timestamp::EPOCH)));
        assert!(known.release(Timestamp::EPOCH).is_err(), "it is not quarantined");
    }

    #[test]
    fn draining_node_continues_to_drain_after_it_was_offline() {
        use PhaseChange::*;
        let mut drained = Node::fixture(1);
        walk(&mut drained, &[Approve, Boot, Enrol, LinkUp, ChecksPass]);
        assert_eq!(drained.drain(), Ok(Some((Phase::Online, Phase::Draining))));
        assert_eq!(drained.drain(), Ok(None), "drained twice");
        assert_eq!(walk(&mut drained, &[Silent]), Phase::Offline);
        assert_eq!(drained.change(LinkUp), Ok(Some((Phase::Offline, Phase::Draining))));
        assert_eq!(
            walk(&mut drained, &[ChecksPass]),
            Phase::Draining,
            "passing checks do not end the drain"
        );
        assert_eq!(walk(&mut drained, &[Drained]), Phase::Maintenance);
        assert_eq!(
            walk(&mut drained, &[Resume, Silent, LinkUp, ChecksPass]),
            Phase::Online,
            "the drain has ended"
        );
    }

    #[test]
    fn acknowledged_alarm_forgets_the_port_only_of_a_moved_node() {
        let port = RelayPort { circuit_id: Some("07".to_owned()), ..RelayPort::default() };
        for moved in [false, true] {
            let mut node = Node::fixture(1);
            (node.relay_port, node.is_local) = (Some(port.clone()), true);
            node.raise(ConditionKind::RelayPortChanged, "circuit ID 08", Timestamp::EPOCH);
            assert_eq!(node.acknowledged(moved), [ConditionKind::RelayPortChanged]);
            assert_eq!(
                (node.relay_port.is_some(), node.is_local),
                (!moved, !moved),
                "moved: {moved}"
            );
        }
    }

    #[test]
    fn removed_node_keeps_only_its_hardware_identity() {
        let mut gone = Node::fixture(1);
        walk(&mut gone, &[PhaseChange::Approve]);
        (gone.name, gone.profile) = ("db1".to_owned(), "compute".parse().ok());
        gone.certificates = vec![Certificate::new("0a", Digest::of(b"key"))];
        gone.boot = Some(meshd_types::BootSessionId([1; 12]));
        assert!(gone.remove(Timestamp::from_millis(9)).is_ok_and(|changed| changed.is_some()));
        let new = Node::fixture(1);
        assert_eq!((&gone.name, &gone.profile, gone.boot), (&new.name, &None, None));
        assert!(gone.certificates.is_empty() && gone.conditions.is_empty());
        assert_eq!(
            (gone.id, &gone.fingerprint, gone.phase),
            (new.id, &new.fingerprint, Phase::Removed)
        );
        assert!(gone.remove(Timestamp::EPOCH).is_err());
    }

    #[test]
    fn replacement_takes_over_all_former_ids() {
        let mut first = Node::fixture(1);
        let mut second = Node::fixture(2);
        let mut third = Node::fixture(3);
        (first.name, first.profile) = ("db1".to_owned(), "compute".parse().ok());
        second.take_over(&first);
        third.take_over(&second);
        assert_eq!((third.name.as_str(), &third.profile), ("db1", &first.profile));
        assert_eq!(third.known_as().collect::<Vec<_>>(), [third.id, second.id, first.id]);
        let unnamed = Node::fixture(4);
        third.take_over(&unnamed);
        assert_eq!(third.name, "db1", "a generated name is not copied");
    }
}
