//! The desired state of a node and its report, by section. Each capability of a node is one
//! section.
//!
//! ```text
//! central  NodeSpec   generation 7, one entry of a section ──▶ agent: the reconciler of the section takes it
//!          ◀── NodeReport   observed 7, the state of the section
//! ```
//! Both are differences. After each welcome the central node sends all entries, and the agent
//! reports all sections. Generations belong to one link: each section counts its entries from 1.

use super::drain::{DrainEntry, DrainReport};
use crate::{
    container::{ContainerEntry, ContainerUpdate},
    task::{TaskEntry, TaskUpdate},
    vm::{VmEntry, VmUpdate},
};
use serde::{Deserialize, Serialize};

/// A section of the desired state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Vms,
    Tasks,
    Containers,
    Drain,
}

/// A difference of the desired state of a node: one entry of a section, complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Number of this entry in its section on this link.
    pub generation: u64,
    pub entry: SpecEntry,
}

/// The desired state of one object of a section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "section", rename_all = "snake_case")]
pub enum SpecEntry {
    Vms(VmEntry),
    Tasks(TaskEntry),
    Containers(ContainerEntry),
    Drain(DrainEntry),
}

impl SpecEntry {
    pub fn section(&self) -> Section {
        match self {
            SpecEntry::Vms(_) => Section::Vms,
            SpecEntry::Tasks(_) => Section::Tasks,
            SpecEntry::Containers(_) => Section::Containers,
            SpecEntry::Drain(_) => Section::Drain,
        }
    }
}

/// A difference of the report of a node: one section that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Generation of the last entry that the reconciler of the section has taken on this link; 0
    /// before the first.
    pub observed: u64,
    pub state: SectionReport,
}

/// The state of a section. What a complete report does not name, the node does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "section", rename_all = "snake_case")]
pub enum SectionReport {
    Vms(VmUpdate),
    Tasks(TaskUpdate),
    Containers(ContainerUpdate),
    Drain(DrainReport),
    /// A section of a later version, whose agents still run after meshd went back to this one.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromAgent, FromCentral, json_element_limit, task::TaskDesiredState};
    use meshd_types::TaskId;
    use serde_json::json;

    #[test]
    fn difference_names_its_section_and_generation() {
        let order = TaskEntry { task: TaskId([7; 4]), desired_state: TaskDesiredState::Gone };
        let spec = FromCentral::Spec(NodeSpec { generation: 3, entry: SpecEntry::Tasks(order) });
        let desired_state = json!({ "state": "gone" });
        let entry = json!({
            "section": "tasks", "task": TaskId([7; 4]), "desired_state": desired_state,
        });
        let wire = json!({ "kind": "spec", "generation": 3, "entry": entry });
        assert_eq!(serde_json::to_value(&spec).expect("plain"), wire);
        assert_eq!(serde_json::from_value::<FromCentral>(wire).expect("its own text"), spec);
        let state = SectionReport::Vms(VmUpdate::All { vms: Vec::new() });
        let report = FromAgent::Report(NodeReport { observed: 3, state });
        let state = json!({ "section": "vms", "update": "all", "vms": [] });
        let wire = json!({ "kind": "report", "observed": 3, "state": state });
        assert_eq!(serde_json::to_value(&report).expect("plain"), wire);
        assert_eq!(serde_json::from_value::<FromAgent>(wire).expect("its own text"), report);
    }

    #[test]
    fn report_of_a_later_section_is_read_as_unknown() {
        let later = json!({
            "kind": "report", "observed": 3,
            "state": { "section": "later", "update": "all", "things": [{ "name": "a" }] },
        });
        let report = NodeReport { observed: 3, state: SectionReport::Unknown };
        let read = json_element_limit::read(later.to_string().as_bytes());
        assert_eq!(read, Ok(FromAgent::Report(report)));
    }
}
