//! Effects of orders and timeouts on a node beside its phase.

use super::{
    condition::ConditionKind,
    phase::{Phase, PhaseChange, Transition, UnlawfulTransition},
    record::Node,
};
use meshd_types::{NodeId, Timestamp, fail};

/// A change of phase, if there was one: from, to.
type Changed = Option<(Phase, Phase)>;

/// Most IDs of gone hardware that a node stands for.
const MAX_FORMER: usize = 8;

impl Node {
    /// Applies a change; `Some((from, to))` if the phase is another one now.
    pub fn change(&mut self, change: PhaseChange) -> Result<Changed, UnlawfulTransition> {
        let from = self.phase;
        match from.on(change)? {
            Transition::Stay => Ok(None),
            Transition::To(to) => {
                self.phase = to;
                if change == PhaseChange::LinkUp && self.drains {
                    // From here the phases allow it.
                    self.phase = Phase::Draining;
                }
                if matches!(change, PhaseChange::Drained | PhaseChange::Resume | PhaseChange::Quarantine) {
                    self.drains = false;
                }
                Ok((self.phase != from).then_some((from, self.phase)))
            }
        }
    }

    /// Takes no new work from now on, and is in maintenance when what runs has ended; also if it is offline meanwhile.
    pub fn drain(&mut self) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Drain)?;
        self.drains = self.phase == Phase::Draining;
        Ok(changed)
    }

    /// True unless an operator has taken it out of service, or is about to.
    pub fn serves(&self) -> bool {
        use Phase::{Draining, Maintenance, Quarantined, Rejected, Removed};
        !self.drains && !matches!(self.phase, Draining | Maintenance | Quarantined | Rejected | Removed)
    }

    /// Nothing that is given to it lets it in any more: what it has is void.
    pub fn revoke(&mut self) {
        self.certificates.clear();
    }

    /// Holds the node until an operator releases it; `Some((from, to))` if it was not held. Its certificates are over.
    pub fn quarantine(&mut self, because: Option<String>) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Quarantine)?;
        if let Some((from, _)) = changed {
            self.held_from = Some(from);
            self.held_because = because;
            self.revoke();
        }
        Ok(changed)
    }

    /// Lets a held node boot again. One that was never approved is as unknown as before: a release lets nobody in.
    pub fn release(&mut self, now: Timestamp) -> Result<Changed, UnlawfulTransition> {
        let was_let_in = self.held_from.is_none_or(Phase::is_admitted);
        let changed = self.change(if was_let_in { PhaseChange::Release } else { PhaseChange::ReleaseUnknown })?;
        (self.held_from, self.held_because) = (None, None);
        self.released_at = Some(now);
        Ok(changed)
    }

    /// Turned away by an operator.
    pub fn reject(&mut self) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Reject)?;
        self.revoke();
        Ok(changed)
    }

    /// Forgets everything that an operator said of it and everything that it has; its hardware stays on record. What it did so far
    /// counts for nothing if it ever comes back.
    pub fn remove(&mut self, now: Timestamp) -> Result<Changed, UnlawfulTransition> {
        let changed = self.change(PhaseChange::Remove)?;
        let (discovered_at, last_seen) = (self.discovered_at, self.last_seen);
        let forgotten = Node::discovered(self.basis.clone(), self.fingerprint.clone(), self.mac, discovered_at);
        *self = Node { phase: Phase::Removed, last_seen, released_at: Some(now), conditions: Vec::new(), ..forgotten };
        Ok(changed)
    }

    /// The IDs by which the site may speak of it: its own, and those of nodes that it stands for.
    pub fn known_as(&self) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::once(self.id).chain(self.former.iter().copied())
    }

    /// Takes over what an operator said of another node: name, profile, variables, labels, and what the site says of its ID. An order for one
    /// boot and a pin stay behind: they speak of what the other one booted.
    pub fn take_over(&mut self, old: &Node) {
        if !old.has_generated_name() {
            self.name.clone_from(&old.name);
        }
        self.profile.clone_from(&old.profile);
        self.vars.clone_from(&old.vars);
        self.labels.clone_from(&old.labels);
        let former: Vec<NodeId> = std::iter::once(old.id).chain(old.former.iter().copied()).collect();
        self.former = former.into_iter().filter(|id| *id != self.id).take(MAX_FORMER).collect();
    }

    /// The same machine as `old` under another ID: in the same phase, as far as one that does not run is in it.
    pub fn continue_as(&mut self, old: &Node) {
        self.take_over(old);
        self.phase = match old.phase {
            Phase::Draining | Phase::Maintenance => Phase::Maintenance,
            phase if phase.is_admitted() => Phase::Approved,
            phase => phase,
        };
        self.held_from = old.held_from;
        self.held_because.clone_from(&old.held_because);
        self.released_at = old.released_at;
        self.relay_port.clone_from(&old.relay_port);
        self.is_local = old.is_local;
        self.units.clone_from(&old.units);
        self.once.clone_from(&old.once);
    }

    /// An operator has seen what is wrong and takes it as it is. Where it is plugged in stays as it is known, unless the operator says
    /// that it was `moved`: the alarm alone does not tell a moved node from an attacker at another port.
    pub fn acknowledged(&mut self, moved: bool) -> Vec<ConditionKind> {
        self.approve_units();
        self.rivals.clear();
        if moved || !fail::defends("relay-port-stays") {
            // Its next enrolment says where to.
            self.relay_port = None;
            self.is_local = false;
        }
        let seen = [ConditionKind::UnitDrift, ConditionKind::HardwareChanged, ConditionKind::IdCollision];
        let seen = seen.into_iter().chain(ConditionKind::ALARMS);
        seen.filter(|kind| self.conditions.iter().any(|condition| condition.kind == *kind)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Certificate, Fingerprint, RelayPort};
    use meshd_types::{Basis, Digest, MacAddr};

    fn node(number: u8) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH)
    }

    fn walk(node: &mut Node, changes: &[PhaseChange]) -> Phase {
        for change in changes {
            node.change(*change).unwrap_or_else(|error| panic!("{error}"));
        }
        node.phase
    }

    #[test]
    fn a_release_lets_nobody_in_who_was_not() {
        let mut unknown = node(1);
        assert!(unknown.quarantine(None).is_ok_and(|changed| changed.is_some()));
        assert!(unknown.release(Timestamp::EPOCH).is_ok());
        assert_eq!(unknown.phase, Phase::Discovered);
        let mut known = node(1);
        walk(&mut known, &[PhaseChange::Approve, PhaseChange::Boot]);
        known.certificates = vec![Certificate::new("0a", Digest::of(b"key"))];
        assert!(known.quarantine(Some("smells".to_owned())).is_ok());
        assert!(known.certificates.is_empty(), "what it has is void");
        assert!(known.quarantine(None).is_ok_and(|changed| changed.is_none()), "held already");
        assert_eq!(known.held_because.as_deref(), Some("smells"));
        assert!(!known.phase.is_admitted(), "no token while it is held");
        assert!(known.release(Timestamp::EPOCH).is_ok());
        assert_eq!((known.phase, known.released_at), (Phase::Approved, Some(Timestamp::EPOCH)));
        assert!(known.release(Timestamp::EPOCH).is_err(), "it is not held");
    }

    #[test]
    fn a_node_that_drains_goes_on_to_drain_when_it_is_back() {
        use PhaseChange::*;
        let mut drained = node(1);
        walk(&mut drained, &[Approve, Boot, Enrol, LinkUp, ChecksPass]);
        assert_eq!(drained.drain(), Ok(Some((Phase::Online, Phase::Draining))));
        assert_eq!(drained.drain(), Ok(None), "asked twice");
        assert_eq!(walk(&mut drained, &[Silent]), Phase::Offline);
        assert_eq!(drained.change(LinkUp), Ok(Some((Phase::Offline, Phase::Draining))));
        assert_eq!(walk(&mut drained, &[ChecksPass]), Phase::Draining, "checks give no new work back to it");
        assert_eq!(walk(&mut drained, &[Drained]), Phase::Maintenance);
        assert_eq!(walk(&mut drained, &[Resume, Silent, LinkUp, ChecksPass]), Phase::Online, "it is over");
    }

    #[test]
    fn acknowledged_alarm_forgets_the_port_only_of_a_moved_node() {
        let port = RelayPort { circuit_id: Some("07".to_owned()), remote_id: None };
        for moved in [false, true] {
            let mut node = node(1);
            (node.relay_port, node.is_local) = (Some(port.clone()), true);
            node.raise(ConditionKind::RelayPortChanged, "circuit ID 08", Timestamp::EPOCH);
            assert_eq!(node.acknowledged(moved), [ConditionKind::RelayPortChanged]);
            assert_eq!((node.relay_port.is_some(), node.is_local), (!moved, !moved), "moved: {moved}");
        }
    }

    #[test]
    fn a_removed_node_has_nothing_left_but_its_hardware() {
        let mut gone = node(1);
        walk(&mut gone, &[PhaseChange::Approve]);
        (gone.name, gone.profile) = ("db1".to_owned(), "compute".parse().ok());
        gone.certificates = vec![Certificate::new("0a", Digest::of(b"key"))];
        gone.boot = Some(meshd_types::BootSessionId([1; 12]));
        assert!(gone.remove(Timestamp::from_millis(9)).is_ok_and(|changed| changed.is_some()));
        let new = node(1);
        assert_eq!((&gone.name, &gone.profile, gone.boot), (&new.name, &None, None));
        assert!(gone.certificates.is_empty() && gone.conditions.is_empty());
        assert_eq!((gone.id, &gone.fingerprint, gone.phase), (new.id, &new.fingerprint, Phase::Removed));
        assert!(gone.remove(Timestamp::EPOCH).is_err());
    }

    #[test]
    fn new_hardware_stands_for_the_old_one_and_for_what_that_stood_for() {
        let (mut first, mut second, mut third) = (node(1), node(2), node(3));
        (first.name, first.profile) = ("db1".to_owned(), "compute".parse().ok());
        second.take_over(&first);
        third.take_over(&second);
        assert_eq!((third.name.as_str(), &third.profile), ("db1", &first.profile));
        assert_eq!(third.known_as().collect::<Vec<_>>(), [third.id, second.id, first.id]);
        let unnamed = node(4);
        third.take_over(&unnamed);
        assert_eq!(third.name, "db1", "a name that was made up is no name");
    }
}
