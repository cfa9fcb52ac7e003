//! The record of a node.

use super::{
    certificate::Certificate,
    condition::{Condition, ConditionKind},
    label::{Labels, label_words},
    phase::Phase,
    relay_port::RelayPort,
    unit_map::UnitMap,
};
use crate::fleet::{Generation, WarmReboot};
use meshd_proto::{Check, Facts, Heartbeat};
use meshd_types::{
    Basis, BootSessionId, Digest, MacAddr, NodeId, OperationId, ProfileName, SystemUuid, Timestamp,
    Vars,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

/// Identity of the hardware, in addition to the basis of the node ID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Fingerprint {
    /// SMBIOS system UUID, also if it is a placeholder.
    pub uuid: Option<SystemUuid>,
    /// SMBIOS manufacturer.
    pub manufacturer: String,
    /// SMBIOS product.
    pub product: String,
    /// SMBIOS system serial number.
    pub serial: String,
    /// SMBIOS board serial number.
    pub board_serial: String,
    /// All known MAC addresses of the machine.
    pub macs: BTreeSet<MacAddr>,
}

/// Boot and time in which checks ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CheckProvenance {
    pub session: BootSessionId,
    /// Boot ID of the kernel, which detects reboots of a machine without netboot: such a machine
    /// stays in one boot session.
    #[serde(default)]
    pub kernel_boot_id: String,
    /// Time of the report by the central node's clock.
    pub at: Timestamp,
}

/// A machine that claimed the identity of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConflictingMachine {
    /// Hardware identity; `macs` contains only the boot NIC.
    pub fingerprint: Fingerprint,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    /// IP address of the request.
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// Time of the first claim.
    pub since: Timestamp,
    /// Time of the last claim, accurate to a minute.
    pub last: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// Name from an operator; `node-<id>` by default.
    pub name: String,
    pub basis: Basis,
    pub fingerprint: Fingerprint,
    pub phase: Phase,
    /// Raised conditions, at most one of each kind.
    pub conditions: Vec<Condition>,
    /// Assigned profile; `None` means the default of the site.
    pub profile: Option<ProfileName>,
    /// Last known address.
    pub address: Option<IpAddr>,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    pub discovered_at: Timestamp,
    /// Last DHCP exchange, boot script or heartbeat.
    pub last_seen: Timestamp,
    /// Newest boot session.
    pub boot: Option<BootSessionId>,
    /// The boot that ends, by an order or because its agent stops, if its boot session is not on
    /// record: that of a ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced_end: Option<BootSessionId>,
    /// Generation of the newest overlay.
    pub generation: Option<Generation>,
    /// Generation that the agent reports.
    pub booted: Option<Generation>,
    /// Accepted certificates, newest last: one, or several between a renewal and the first use of
    /// a new one.
    pub certificates: Vec<Certificate>,
    pub facts: Option<Facts>,
    pub checks: Vec<Check>,
    /// Boot in which the checks ran; see [`Node::valid_checks`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<CheckProvenance>,
    /// Approved units; `None` before the first report of units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<UnitMap>,
    /// Phase before the quarantine; `None` outside of quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_from: Option<Phase>,
    /// Reason of the quarantine from an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_reason: Option<String>,
    /// An operator drains the node. An offline period or a boot does not end the drain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drains: bool,
    /// IDs of replaced nodes, whose configuration in `site.toml` applies to this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<NodeId>,
    /// Other machines that claimed the identity of this node and were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicting_machines: Vec<ConflictingMachine>,
    /// Time of the release by an operator. Earlier boots do not count for boot loops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// Variables of the node, which take precedence over those of profile and groups.
    #[serde(default, skip_serializing_if = "Vars::is_empty")]
    pub vars: Vars,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Override for the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_override: Option<NextBootOverride>,
    /// Pinned generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Generation>,
    /// Address of the central node in the last boot script; part of the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub central_address: Option<Ipv4Addr>,
    /// Switch port at the enrolment; `None` on a local segment, or if the relay does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_port: Option<RelayPort>,
    /// NICs of `fingerprint` that only the node itself reported. They identify the node when it
    /// boots from one, and claim nothing from others: no address, no name, no boot session, no NIC
    /// of a VM.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reported_nics: BTreeSet<MacAddr>,
    /// The node enrolled on a local segment, without a relay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_local: bool,
    /// The last order to reboot without the firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_reboot: Option<WarmReboot>,
}

/// An override for one boot session, which may request its script several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NextBootOverride {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// Additional kernel arguments; `-x` removes one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_args: Vec<String>,
    /// Time of the order.
    pub set_at: Timestamp,
    /// Boot session that uses it; `None` before the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<BootSessionId>,
}

impl NextBootOverride {
    /// Returns true if the override applies to a boot session; `None` is the next one.
    pub fn is_for(&self, session: Option<BootSessionId>) -> bool {
        self.used_by.is_none() || self.used_by == session
    }

    /// Returns a description of the override.
    pub fn words(&self) -> String {
        let profile = self.profile.iter().map(|profile| format!("profile {profile}"));
        profile.chain(self.kernel_args.iter().cloned()).collect::<Vec<_>>().join(" ")
    }
}

/// State of the link of a node. Never stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    pub since: Option<Timestamp>,
    pub last_message_at: Option<Timestamp>,
    pub heartbeat: Option<Heartbeat>,
}

impl Node {
    /// Creates the record of a new machine.
    pub fn discovered(
        basis: Basis,
        fingerprint: Fingerprint,
        mac: MacAddr,
        now: Timestamp,
    ) -> Self {
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
            announced_end: None,
            generation: None,
            booted: None,
            certificates: Vec::new(),
            facts: None,
            checks: Vec::new(),
            evidence: None,
            units: None,
            quarantined_from: None,
            quarantine_reason: None,
            drains: false,
            former: Vec::new(),
            conflicting_machines: Vec::new(),
            released_at: None,
            vars: Vars::new(),
            labels: Labels::new(),
            boot_override: None,
            pinned: None,
            central_address: None,
            relay_port: None,
            reported_nics: BTreeSet::new(),
            is_local: false,
            warm_reboot: None,
        };
        node.fingerprint.macs.insert(mac);
        if node.basis.is_weak() {
            let detail = "the ID rests on a MAC address: no trustworthy UUID or serial";
            node.raise(ConditionKind::WeakIdentity, detail, now);
        }
        node
    }

    /// Returns whether the name is generated, because neither an operator nor the site named the
    /// node.
    pub fn has_generated_name(&self) -> bool {
        self.name == generated_name(self.id)
    }

    /// Records that the script of a session used the override that was set at `set_at`. Deletes an
    /// override that an earlier session used. Returns true for the first use.
    pub fn use_boot_override(&mut self, session: BootSessionId, set_at: Option<Timestamp>) -> bool {
        self.boot_override = self.boot_override.take().filter(|order| order.is_for(Some(session)));
        let Some(order) = self.boot_override.as_mut().filter(|order| Some(order.set_at) == set_at)
        else {
            return false;
        };
        order.used_by.replace(session).is_none()
    }

    /// Returns true if the record has the result of this order to reboot warm.
    pub fn has_warm_result(&self, order: OperationId) -> bool {
        self.warm_reboot.as_ref().is_some_and(|reboot| reboot.operation == order)
    }

    /// Returns a digest of the values that operators decide by: name, phase, conditions, profile,
    /// pin, variables, labels and override. Heartbeats do not change it.
    pub fn revision(&self) -> String {
        let conditions = self
            .conditions
            .iter()
            .map(|condition| condition.kind.as_str())
            .collect::<Vec<_>>()
            .join(" ");
        let vars = self
            .vars
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(" ");
        let once = self
            .boot_override
            .as_ref()
            .map(|once| format!("{} {}", once.set_at, once.words()))
            .unwrap_or_default();
        let pinned = self.pinned.map(|generation| generation.to_string()).unwrap_or_default();
        let profile = self.profile.as_ref().map(ToString::to_string).unwrap_or_default();
        let labels = label_words(&self.labels);
        let phase = if self.drains { "drains" } else { self.phase.as_str() };
        let fields = [&self.name, phase, &conditions, &profile, &pinned, &vars, &labels, &once];
        Digest::of_fields(fields.map(str::as_bytes)).short()
    }

    /// Returns the difference between reported and approved units. The first reported units of a
    /// profile are approved.
    pub fn compare_units(&mut self) -> Option<String> {
        let now = self.facts.as_ref().map(UnitMap::from_facts)?;
        match self.units.as_ref().filter(|approved| approved.profile == now.profile) {
            Some(approved) => approved.drift(&now),
            None => {
                self.units = (!now.functions.is_empty()).then_some(now);
                None
            }
        }
    }

    /// Approves the reported units.
    pub fn approve_units(&mut self) {
        self.units =
            self.facts.as_ref().map(UnitMap::from_facts).filter(|map| !map.functions.is_empty());
    }

    /// Raises a condition or updates its detail. Returns true if it is new.
    pub fn raise(
        &mut self,
        kind: ConditionKind,
        detail: impl Into<String>,
        now: Timestamp,
    ) -> bool {
        let detail = detail.into();
        if let Some(condition) = self.conditions.iter_mut().find(|condition| condition.kind == kind)
        {
            condition.detail = detail;
            return false;
        }
        self.conditions.push(Condition { kind, since: now, detail });
        true
    }

    /// Clears a condition. Returns true if it was raised.
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
impl Node {
    /// Returns a new node with this last octet of its MAC address.
    pub(crate) fn fixture(number: u8) -> Self {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_changes_with_settings_and_not_with_heartbeats() {
        let before = Node::fixture(1);
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
    fn next_boot_override_is_used_by_one_session_only() {
        let first = BootSessionId([1; 12]);
        let next = BootSessionId([2; 12]);
        let at = Timestamp::from_millis;
        let mut node = Node::fixture(1);
        node.boot_override = Some(NextBootOverride {
            profile: None,
            kernel_args: vec!["debug".into()],
            set_at: at(1),
            used_by: None,
        });
        assert!(
            !node.use_boot_override(first, None),
            "set after the script was rendered: applies to the next boot"
        );
        assert_eq!(node.boot_override.as_ref().map(|once| once.used_by), Some(None));
        assert!(node.use_boot_override(first, Some(at(1))));
        assert!(!node.use_boot_override(first, Some(at(1))), "second request");
        assert!(node.boot_override.is_some());
        assert!(!node.use_boot_override(next, None));
        assert_eq!(node.boot_override, None);
    }
}
