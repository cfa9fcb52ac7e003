//! The record of a node.

use super::{
    certificate::Certificate,
    condition::{Condition, ConditionKind},
    identity::ConflictingMachine,
    label::{Labels, label_words},
    phase::Phase,
    readiness::CheckProvenance,
    relay_port::RelayPort,
    unit_map::UnitMap,
};
use crate::fleet::Generation;
use meshd_proto::{Check, Facts, Heartbeat};
use meshd_types::{Basis, BootSessionId, Digest, MacAddr, NodeId, ProfileName, SystemUuid, Timestamp, Vars};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

/// Everything that identifies the hardware, beyond what the ID is derived from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// SMBIOS system UUID, trustworthy or not.
    pub uuid: Option<SystemUuid>,
    /// SMBIOS manufacturer.
    pub manufacturer: String,
    /// SMBIOS product.
    pub product: String,
    /// SMBIOS system serial number.
    pub serial: String,
    /// SMBIOS board serial number.
    pub board_serial: String,
    /// Every MAC address that this machine was seen with.
    pub macs: BTreeSet<MacAddr>,
}

/// A known machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// What an operator calls it; `node-<id>` until told otherwise.
    pub name: String,
    /// What the ID was derived from.
    pub basis: Basis,
    /// Hardware identity.
    pub fingerprint: Fingerprint,
    /// Where it is in its life.
    pub phase: Phase,
    /// What is wrong with it, one of each kind.
    pub conditions: Vec<Condition>,
    /// The profile that an operator assigned; `None` means the site's default.
    pub profile: Option<ProfileName>,
    /// Last address.
    pub address: Option<IpAddr>,
    /// The NIC that it boots from.
    pub mac: MacAddr,
    /// First seen.
    pub discovered_at: Timestamp,
    /// Last sign of life: DHCP, script, heartbeat.
    pub last_seen: Timestamp,
    /// Its newest boot session.
    pub boot: Option<BootSessionId>,
    /// What its newest overlay was made from.
    pub generation: Option<Generation>,
    /// What its agent says that it booted.
    pub booted: Option<Generation>,
    /// The certificates that are honoured, newest last: one, or two between a renewal and the first use of the new one. All
    /// others are refused.
    pub certificates: Vec<Certificate>,
    /// What it last told of itself.
    pub facts: Option<Facts>,
    /// Last check results.
    pub checks: Vec<Check>,
    /// The boot that they ran in; [`Node::valid_checks`] says whether they count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<CheckProvenance>,
    /// The units that it was approved with; `None` until it tells of any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<UnitMap>,
    /// The phase in which it was quarantined; `None` while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_from: Option<Phase>,
    /// Why an operator holds it, if one said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_because: Option<String>,
    /// An operator drains it: it goes on to drain when it comes back from being offline or from a boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drains: bool,
    /// IDs of nodes that it stands for: their hardware is gone, and what the site says of them holds for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<NodeId>,
    /// Other machines that asked to be this node, and were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<ConflictingMachine>,
    /// When an operator released it: boots before that count for no loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// Its own variables: they win over those of its profile and its groups.
    #[serde(default, skip_serializing_if = "Vars::is_empty")]
    pub vars: Vars,
    /// Where it is and what it is for, in an operator's words; selectors read them.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// What an operator ordered for one boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<NextBootOverride>,
    /// The generation that it boots, whatever becomes of its profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Generation>,
    /// The central node's address that its last script named: part of what it boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Ipv4Addr>,
    /// Where it is plugged in behind a relay, as it was when it enrolled; `None` on a local segment, or where relays do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_port: Option<RelayPort>,
    /// It enrolled on a local segment: no relay speaks for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_local: bool,
}

/// Something for the next boot only. It is used up by the boot session whose script had it, however often that asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextBootOverride {
    /// Another profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// Kernel arguments on top of the profile's; `-x` takes one away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_args: Vec<String>,
    /// When it was ordered.
    pub set_at: Timestamp,
    /// The boot session that has it; `None` while none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<BootSessionId>,
}

impl NextBootOverride {
    /// Whether a boot session gets it; `None` is the next one.
    pub fn is_for(&self, session: Option<BootSessionId>) -> bool {
        self.used_by.is_none() || self.used_by == session
    }

    /// In words, for people.
    pub fn words(&self) -> String {
        let profile = self.profile.iter().map(|profile| format!("profile {profile}"));
        profile.chain(self.kernel_args.iter().cloned()).collect::<Vec<_>>().join(" ")
    }
}

/// Whether a node's link is up; kept in memory, never stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Up since.
    pub since: Option<Timestamp>,
    /// Last sign of life on it.
    pub heard: Option<Timestamp>,
    /// Last heartbeat.
    pub heartbeat: Option<Heartbeat>,
}

impl Node {
    /// A machine that was never seen before.
    pub fn discovered(basis: Basis, fingerprint: Fingerprint, mac: MacAddr, now: Timestamp) -> Self {
        let id = basis.node_id();
        let mut node = Node {
            id,
            name: generated_name(id),
            basis,
            fingerprint,
            phase: Phase::Discovered,
            conditions: Vec::new(),
            profile: None,
            address: None,
            mac,
            discovered_at: now,
            last_seen: now,
            boot: None,
            generation: None,
            booted: None,
            certificates: Vec::new(),
            facts: None,
            checks: Vec::new(),
            evidence: None,
            units: None,
            held_from: None,
            held_because: None,
            drains: false,
            former: Vec::new(),
            rivals: Vec::new(),
            released_at: None,
            vars: Vars::new(),
            labels: Labels::new(),
            once: None,
            pinned: None,
            told: None,
            relay_port: None,
            is_local: false,
        };
        node.fingerprint.macs.insert(mac);
        if node.basis.is_weak() {
            node.raise(
                ConditionKind::WeakIdentity,
                "the ID rests on a MAC address: no trustworthy UUID or serial",
                now,
            );
        }
        node
    }

    /// Returns whether nobody named the node: neither an operator nor the site.
    pub fn has_generated_name(&self) -> bool {
        self.name == generated_name(self.id)
    }

    /// A script of this session went out that followed the order for one boot given at `once`. It is this session's from now on, and
    /// what an earlier session used is over. True if this session is the first to use it.
    pub fn use_once(&mut self, session: BootSessionId, once: Option<Timestamp>) -> bool {
        self.once = self.once.take().filter(|order| order.is_for(Some(session)));
        let Some(order) = self.once.as_mut().filter(|order| Some(order.set_at) == once) else { return false };
        order.used_by.replace(session).is_none()
    }

    /// A word that changes with everything that an operator decides by: name, phase, conditions, profile, pin, variables, labels and the
    /// order for one boot. It does not change with heartbeats.
    pub fn revision(&self) -> String {
        let conditions = self.conditions.iter().map(|condition| condition.kind.as_str()).collect::<Vec<_>>().join(" ");
        let vars = self.vars.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        let once = self.once.as_ref().map(|once| format!("{} {}", once.set_at, once.words())).unwrap_or_default();
        let pinned = self.pinned.map(|generation| generation.to_string()).unwrap_or_default();
        let profile = self.profile.as_ref().map(ToString::to_string).unwrap_or_default();
        let labels = label_words(&self.labels);
        let phase = if self.drains { "drains" } else { self.phase.as_str() };
        let fields = [&self.name, phase, &conditions, &profile, &pinned, &vars, &labels, &once];
        Digest::of_fields(fields.map(str::as_bytes)).short()
    }

    /// Compares the units that it tells of with those that it was approved with; what is different, if anything is. The first
    /// ones that it has with a profile are those that it is approved with.
    pub fn compare_units(&mut self) -> Option<String> {
        let now = self.facts.as_ref().map(UnitMap::of)?;
        match self.units.as_ref().filter(|approved| approved.profile == now.profile) {
            Some(approved) => approved.drift(&now),
            None => {
                self.units = (!now.functions.is_empty()).then_some(now);
                None
            }
        }
    }

    /// An operator takes the units as they are.
    pub fn approve_units(&mut self) {
        self.units = self.facts.as_ref().map(UnitMap::of).filter(|map| !map.functions.is_empty());
    }

    /// Raises a condition, or updates its detail; true if it was not there.
    pub fn raise(&mut self, kind: ConditionKind, detail: impl Into<String>, now: Timestamp) -> bool {
        let detail = detail.into();
        if let Some(condition) = self.conditions.iter_mut().find(|condition| condition.kind == kind) {
            condition.detail = detail;
            return false;
        }
        self.conditions.push(Condition { kind, since: now, detail });
        true
    }

    /// Clears a condition; true if it was there.
    pub fn clear(&mut self, kind: ConditionKind) -> bool {
        let before = self.conditions.len();
        self.conditions.retain(|condition| condition.kind != kind);
        self.conditions.len() != before
    }
}

fn generated_name(id: NodeId) -> String {
    format!("node-{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH)
    }

    #[test]
    fn revision_changes_with_orders_and_not_with_signs_of_life() {
        let before = node();
        let mut alive = before.clone();
        (alive.last_seen, alive.address) = (Timestamp::from_millis(9), "10.77.0.9".parse().ok());
        assert_eq!(alive.revision(), before.revision());
        let changes: [fn(&mut Node); 6] = [
            |node| node.phase = Phase::Online,
            |node| node.name = "other".to_owned(),
            |node| node.profile = "compute".parse().ok(),
            |node| drop(node.labels.insert("rack".parse().unwrap(), "a".parse().unwrap())),
            |node| drop(node.vars.insert("slots".parse().unwrap(), "8".parse().unwrap())),
            |node| assert!(node.raise(ConditionKind::Drift, "", Timestamp::EPOCH)),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut after = before.clone();
            change(&mut after);
            assert_ne!(after.revision(), before.revision(), "change {number}");
        }
    }

    #[test]
    fn an_order_for_one_boot_is_used_by_one_session_and_gone_in_the_next() {
        let (first, next) = (BootSessionId([1; 12]), BootSessionId([2; 12]));
        let at = Timestamp::from_millis;
        let mut node = node();
        node.once =
            Some(NextBootOverride { profile: None, kernel_args: vec!["debug".into()], set_at: at(1), used_by: None });
        assert!(!node.use_once(first, None), "given after its script was made: it waits for the next boot");
        assert_eq!(node.once.as_ref().map(|once| once.used_by), Some(None));
        assert!(node.use_once(first, Some(at(1))));
        assert!(!node.use_once(first, Some(at(1))), "asked again");
        assert!(node.once.is_some());
        assert!(!node.use_once(next, None));
        assert_eq!(node.once, None);
    }
}
