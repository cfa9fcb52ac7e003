//! The boot progress of a node, from `meshd node list -o json`.

use meshd_types::Timestamp;
use serde_json::Value;

/// State of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub phase: String,
    /// The assigned profile.
    pub profile: String,
    /// The profile of the node's newest overlay.
    pub generation: String,
    pub session: String,
    /// Stages of the session in order.
    pub stages: Vec<(String, Option<Timestamp>)>,
}

impl Progress {
    /// Reads a node of `meshd node list`; absent fields become empty.
    pub fn read(node: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let stage = |mark: &Value| {
            (text(&mark["stage"]), mark["at"].as_str().and_then(|at| at.parse().ok()))
        };
        Progress {
            phase: text(&node["phase"]),
            profile: text(&node["profile"]),
            generation: text(&node["generation"]),
            session: text(&node["boot"]["session"]),
            stages: node["boot"]["stages"].as_array().into_iter().flatten().map(stage).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn node_without_boot_has_no_stages() {
        let progress = Progress::read(&json!({ "phase": "approved", "boot": null }));
        assert_eq!((progress.phase.as_str(), progress.stages.len()), ("approved", 0));
    }

    #[test]
    fn stages_are_parsed_in_order_with_times() {
        let marks = json!([{ "stage": "dhcp", "at": "2026-01-31T12:00:00.000Z" }, { "stage": "script", "at": 3 }]);
        let progress = Progress::read(&json!({ "boot": { "session": "s1", "stages": marks } }));
        assert_eq!(progress.session, "s1");
        assert_eq!(progress.stages[0].1.map(Timestamp::seconds), Some(1_769_860_800));
        assert_eq!(progress.stages[1], ("script".to_owned(), None));
    }
}
