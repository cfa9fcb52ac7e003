//! The desired state of a task on one node, derived from its record alone.

use super::{Launcher, Task};
use meshd_proto::task::{TaskDesiredState, TaskEntry, TaskRun};
use meshd_types::NodeId;
use std::collections::BTreeMap;

/// `PATH` of tasks.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

impl Task {
    /// Returns the order for a node; `None` if the node is not a member, is released, or waits for
    /// the head.
    pub fn entry_for(&self, node: NodeId) -> Option<TaskEntry> {
        let index =
            self.members.iter().position(|member| member.node == node && member.is_held())?;
        let desired_state = match &self.end {
            Some(_) => TaskDesiredState::Gone,
            None => TaskDesiredState::Run(Box::new(TaskRun {
                argv: self.spec.argv.clone(),
                env: self.environment(index),
                user: self.spec.user,
                role: self.role(index)?,
                has_input: self.spec.has_input,
            })),
        };
        Some(TaskEntry { task: self.id, desired_state })
    }

    fn environment(&self, index: usize) -> BTreeMap<String, String> {
        let addresses: Vec<String> =
            self.members.iter().map(|member| member.address.to_string()).collect();
        let ranks = self.members.len() * usize::from(self.spec.ranks_per_node);
        let named = [
            ("LANG", "C.UTF-8".to_owned()),
            ("PATH", PATH.to_owned()),
            ("MESHD_TASK", self.id.to_string()),
            ("MESHD_NODE_COUNT", self.members.len().to_string()),
            ("MESHD_NODES", addresses.join(",")),
            ("MESHD_RANKS", ranks.to_string()),
        ];
        let mut env: BTreeMap<String, String> =
            named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        // Hydra copies the environment of the head to every rank, so node-specific variables work
        // only without it.
        if self.spec.launcher == Launcher::None {
            env.insert("MESHD_NODE".to_owned(), index.to_string());
        }
        env
    }
}
