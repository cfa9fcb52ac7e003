//! The desired state of a task on one node, derived from its record alone.

use super::{Launcher, Task};
use meshd_proto::task::{TaskDesiredState, TaskOrder, TaskRole, TaskRun};
use meshd_types::NodeId;
use std::{collections::BTreeMap, net::SocketAddrV4};

/// `PATH` of tasks.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

impl Task {
    /// Returns the order for a node; `None` if the node is not a member, is released, or waits for the head.
    pub fn order_for(&self, node: NodeId) -> Option<TaskOrder> {
        let place = self.members.iter().position(|member| member.node == node && member.is_held())?;
        let want = match &self.end {
            Some(_) => TaskDesiredState::Gone,
            None => TaskDesiredState::Run(Box::new(TaskRun {
                argv: self.spec.argv.clone(),
                env: self.environment(place),
                user: self.spec.user,
                role: self.role(place)?,
            })),
        };
        Some(TaskOrder { task: self.id, want })
    }

    fn role(&self, place: usize) -> Option<TaskRole> {
        let ranks = self.spec.ranks_per_node;
        let place = u32::try_from(place).ok()?;
        match self.spec.launcher {
            Launcher::None => Some(TaskRole::Ranks { count: ranks, first: place * u32::from(ranks) }),
            Launcher::Mpich if place == 0 => {
                let hosts = self.members.iter().map(|member| member.address).collect();
                Some(TaskRole::Head { hosts, ranks_per_node: ranks })
            }
            Launcher::Mpich => {
                let launch = self.launch.clone()?;
                let control = SocketAddrV4::new(self.members.first()?.address, launch.port());
                Some(TaskRole::Proxy { control, proxy: place, launch })
            }
        }
    }

    fn environment(&self, place: usize) -> BTreeMap<String, String> {
        let addresses: Vec<String> = self.members.iter().map(|member| member.address.to_string()).collect();
        let ranks = self.members.len() * usize::from(self.spec.ranks_per_node);
        let named = [
            ("LANG", "C.UTF-8".to_owned()),
            ("PATH", PATH.to_owned()),
            ("MESHD_JOB", self.id.to_string()),
            ("MESHD_NODE_COUNT", self.members.len().to_string()),
            ("MESHD_NODES", addresses.join(",")),
            ("MESHD_RANKS", ranks.to_string()),
        ];
        let mut env: BTreeMap<String, String> =
            named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        // Hydra copies the environment of the head to every rank, so node-specific variables work only without it.
        if self.spec.launcher == Launcher::None {
            env.insert("MESHD_NODE".to_owned(), place.to_string());
        }
        env
    }
}
