//! Roles of the nodes of a task: Hydra's head and proxies, or independent ranks without a launcher.

use super::{Launcher, Task};
use meshd_proto::task::TaskRole;
use std::net::SocketAddrV4;

impl Task {
    /// Returns the role of a member; `None` while a proxy waits for the launch command of the head.
    pub(super) fn role(&self, index: usize) -> Option<TaskRole> {
        let ranks = self.spec.ranks_per_node;
        let index = u32::try_from(index).ok()?;
        match self.spec.launcher {
            Launcher::None => {
                Some(TaskRole::Ranks { count: ranks, first: index * u32::from(ranks) })
            }
            Launcher::Mpich if index == 0 => {
                let hosts = self.members.iter().map(|member| member.address).collect();
                Some(TaskRole::Head { hosts, ranks_per_node: ranks })
            }
            Launcher::Mpich => {
                let launch = self.launch.clone()?;
                let control = SocketAddrV4::new(self.members.first()?.address, launch.port());
                Some(TaskRole::Proxy { control, proxy: index, launch })
            }
        }
    }
}
