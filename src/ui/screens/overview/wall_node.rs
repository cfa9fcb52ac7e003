//! A node on the overview, and how it looks there.

use crate::html::phase_class;
use meshd_model::fleet::{Condition, Phase, Severity, Stage};
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

impl WallNode {
    pub(super) fn severity(&self) -> Severity {
        Severity::of(self.phase, &self.conditions)
    }

    pub(super) fn needs_attention(&self) -> bool {
        self.severity().needs_attention()
    }
}

/// A boot in progress.
pub(super) struct Boot {
    pub(super) opened_at: Timestamp,
    /// The stage that was reached last.
    pub(super) stage: Stage,
}

/// Style classes of nodes, and what they mean. The style sheet gives each of them a form, too:
/// colours are not everybody's, and not of every screen.
pub(super) const LEGEND: [(&str, &str); 7] = [
    ("alarm", "alarm: an attack, or two machines with one ID"),
    ("bad", "offline, quarantined, or its boot fails"),
    ("warn", "degraded, or with a fault"),
    ("wait", "waits for approval, or drains"),
    ("busy", "on its way: approved, boots, enrols"),
    ("idle", "out of service by order"),
    ("good", "online"),
];

/// Returns the style class of a node, one of [`LEGEND`].
pub(super) fn class(node: &WallNode) -> &'static str {
    match (node.severity(), node.phase) {
        (Severity::Alarm, _) => "alarm",
        (Severity::Down, _) => "bad",
        (Severity::Failing, _) => "warn",
        // The colour of trouble is for trouble.
        (_, Phase::Discovered | Phase::Draining) => "wait",
        (_, phase) => phase_class(phase),
    }
}

/// Returns the most urgent condition.
pub(super) fn worst_condition(node: &WallNode) -> Option<&Condition> {
    node.conditions.iter().min_by_key(|condition| Severity::of_condition(condition.kind))
}

/// Returns the time at which the trouble of a node began.
pub(super) fn begin(node: &WallNode) -> Timestamp {
    match worst_condition(node) {
        Some(condition) if Severity::of_condition(condition.kind).needs_attention() => {
            condition.since
        }
        _ => node.last_seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::fleet::ConditionKind;
    use serde_json::json;

    #[test]
    fn legend_has_the_look_of_every_node() {
        let node = |phase: Phase, conditions: serde_json::Value| -> WallNode {
            let node = json!({ "id": "3f9a1c0e", "name": "n", "phase": phase, "profile": "compute",
                "conditions": conditions, "last_seen": "2026-01-01T00:00:00Z" });
            serde_json::from_value(node).expect("a node")
        };
        let mut nodes: Vec<_> =
            Phase::ALL.into_iter().map(|phase| node(phase, json!([]))).collect();
        nodes.extend(ConditionKind::ALL.into_iter().map(|kind| {
            let since = "2026-01-01T00:00:00Z";
            node(Phase::Online, json!([{ "kind": kind, "since": since, "detail": "" }]))
        }));
        let is_shown = |class: &str| LEGEND.iter().any(|(known, _)| *known == class);
        for node in &nodes {
            assert!(is_shown(class(node)), "{node:?}");
        }
        let is_used = |class_name: &str| nodes.iter().any(|node| class(node) == class_name);
        assert!(LEGEND.iter().all(|(class, _)| is_used(class)), "a look without a node");
    }
}
