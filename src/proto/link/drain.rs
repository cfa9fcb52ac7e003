//! Drain hooks: programs that the overlays of a node bring. They close another scheduler of the
//! node, such as Slurm, when the node leaves service, and open it again.
//!
//! ```text
//! central  DrainEntry    out of service, for this reason ──▶ agent: runs each hook until its work has ended
//!          ◀── DrainReport   the state of each hook
//! ```
//! The hook of [`Facts::drain_hooks`](crate::Facts::drain_hooks) that a report does not name as
//! done keeps the drain of its node open. A node without hooks gets no entry.

use crate::text::{plain, text_type};
use serde::{Deserialize, Serialize};

/// Folder of the hooks on a node.
pub const DRAIN_HOOKS: &str = "/etc/meshd/drain.d";
/// Maximum number of hooks of a node. Further ones are ignored.
pub const MAX_DRAIN_HOOKS: usize = 16;
/// Maximum length of [`DrainOrder::reason`], in characters.
pub const MAX_DRAIN_REASON: usize = 200;
/// Maximum length of [`HookReport::detail`], in characters.
pub const MAX_HOOK_DETAIL: usize = 300;

text_type!(
    /// File name of a drain hook.
    HookName,
    "name of a drain hook",
    "use 1 to 64 letters, digits, dots, dashes and underscores",
    |text| plain(text, 64, b"._-")
);

/// Whether the node is in service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainEntry {
    /// `None` if the node is in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainOrder>,
}

/// How a node leaves service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainOrder {
    /// For people: `meshd: ` and the cause, one line of at most [`MAX_DRAIN_REASON`] characters.
    pub reason: String,
    /// Stop the work that runs, instead of waiting for its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_work: bool,
    /// Grace time of a stop, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
}

/// The state of all hooks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// The hooks run because the node leaves service; false if it returns to service.
    pub drains: bool,
    pub hooks: Vec<HookReport>,
}

/// The state of one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    pub name: HookName,
    pub state: HookState,
    /// Last line of the output, at most [`MAX_HOOK_DETAIL`] characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The result of the last run of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum HookState {
    /// It has not ended since the node left or entered service.
    Pending,
    /// Work is left. The hook runs again.
    Waiting,
    /// The hook failed. It runs again.
    Failed,
    Done,
}

serialised_name!(HookState);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeReport, NodeSpec, SectionReport, SpecEntry};
    use serde_json::json;

    #[test]
    fn drain_entry_and_report_have_stable_wire_form() {
        let order =
            DrainOrder { reason: "meshd: uid:0".to_owned(), stop_work: true, grace_s: Some(9) };
        let spec =
            |drain| NodeSpec { generation: 1, entry: SpecEntry::Drain(DrainEntry { drain }) };
        let drain = json!({ "reason": "meshd: uid:0", "stop_work": true, "grace_s": 9 });
        let wire = json!({ "generation": 1, "entry": { "section": "drain", "drain": drain } });
        assert_eq!(serde_json::to_value(spec(Some(order))).expect("plain"), wire);
        let wire = json!({ "generation": 1, "entry": { "section": "drain" } });
        assert_eq!(serde_json::to_value(spec(None)).expect("plain"), wire);
        assert_eq!(serde_json::from_value::<NodeSpec>(wire).expect("its own text"), spec(None));

        let name: HookName = "slurm".parse().expect("a name");
        let hook = HookReport { name, state: HookState::Waiting, detail: "job 7".to_owned() };
        let state = SectionReport::Drain(DrainReport { drains: true, hooks: vec![hook] });
        let report = NodeReport { observed: 1, state };
        let hook = json!({ "name": "slurm", "state": "waiting", "detail": "job 7" });
        let state = json!({ "section": "drain", "drains": true, "hooks": [hook] });
        let wire = json!({ "observed": 1, "state": state });
        assert_eq!(serde_json::to_value(&report).expect("plain"), wire);
        assert_eq!(serde_json::from_value::<NodeReport>(wire).expect("its own text"), report);
    }

    #[test]
    fn hook_name_leads_out_of_no_folder() {
        for name in ["slurm", "10-slurm.sh", "a_b"] {
            assert!(name.parse::<HookName>().is_ok(), "{name}");
        }
        for name in ["", ".", "..", "../x", "a/b", "-a", ".hidden", "a b", &"x".repeat(65)] {
            assert!(name.parse::<HookName>().is_err(), "{name}");
        }
    }
}
