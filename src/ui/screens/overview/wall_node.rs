//! A node on the overview, and how urgently it needs an operator.

use crate::html::phase_class;
use meshd_model::fleet::{Condition, ConditionKind, Phase};
use meshd_types::{NodeId, ProfileName, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Fields of a node that the overview requests.
pub(super) const FIELDS: &str = "id,name,phase,conditions,labels,profile,segment,last_seen";

/// The fields of [`FIELDS`].
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WallNode {
    pub(super) id: NodeId,
    pub(super) name: String,
    pub(super) phase: Phase,
    #[serde(default)]
    pub(super) conditions: Vec<Condition>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    pub(super) profile: ProfileName,
    #[serde(default)]
    pub(super) segment: Option<String>,
    pub(super) last_seen: Timestamp,
}

/// How urgently a node needs an operator, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// A sign of an attack.
    Alarm,
    /// The node does not serve, and nobody ordered that.
    Down,
    Failing,
    /// The node waits for an operator or a boot, or it is out of service by order.
    Pending,
    Fine,
}

impl Severity {
    pub(super) fn of(node: &WallNode) -> Self {
        let by_phase = match node.phase {
            Phase::Offline | Phase::Quarantined => Severity::Down,
            Phase::Degraded => Severity::Failing,
            Phase::Online => Severity::Fine,
            _ => Severity::Pending,
        };
        let by_conditions = node.conditions.iter().map(|condition| of_condition(condition.kind));
        by_conditions.fold(by_phase, Severity::min)
    }

    pub(super) fn needs_attention(self) -> bool {
        self <= Severity::Failing
    }
}

fn of_condition(kind: ConditionKind) -> Severity {
    match kind {
        ConditionKind::IdCollision => Severity::Alarm,
        kind if ConditionKind::ALARMS.contains(&kind) => Severity::Alarm,
        ConditionKind::BootStalled | ConditionKind::BootLoop => Severity::Down,
        // They wait for the next boot or for a quiet hour.
        ConditionKind::RebootRequired
        | ConditionKind::WeakIdentity
        | ConditionKind::AgentOutdated => Severity::Fine,
        _ => Severity::Failing,
    }
}

/// Returns the colour class of a node: alarms have their own, other nodes that of the phase or of
/// the condition.
pub(super) fn class(node: &WallNode) -> &'static str {
    match Severity::of(node) {
        Severity::Alarm => "alarm",
        Severity::Down => "bad",
        Severity::Failing => "warn",
        _ => phase_class(node.phase),
    }
}

/// Returns the most urgent condition.
pub(super) fn worst_condition(node: &WallNode) -> Option<&Condition> {
    node.conditions.iter().min_by_key(|condition| of_condition(condition.kind))
}

/// Returns the time at which the trouble of a node began.
pub(super) fn begin(node: &WallNode) -> Timestamp {
    match worst_condition(node) {
        Some(condition) if of_condition(condition.kind).needs_attention() => condition.since,
        _ => node.last_seen,
    }
}
