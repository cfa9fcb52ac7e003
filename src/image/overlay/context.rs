//! The inputs of a rendering: node, variables and groups.

use meshd_types::{GroupName, NodeId, OverlayName, Vars};
use std::{net::Ipv4Addr, sync::Arc};

/// What of the node itself its overlay depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    pub id: NodeId,
    /// The name that an operator gave it; without one it is `node-ID`.
    pub name: Option<String>,
    /// Its variables: those of its profile, of its groups and its own, the last writer having won.
    pub vars: Vars,
    /// The groups that it is in, in the order in which their overlays are applied.
    pub groups: Vec<GroupContext>,
}

/// What of a group the overlays of its members depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupContext {
    /// The group's name.
    pub name: GroupName,
    /// Overlays after those of the profile, in order.
    pub overlays: Vec<OverlayName>,
    /// All its members, in the order of their IDs; shared by the contexts of all of them.
    pub members: Arc<[MemberContext]>,
}

/// A member of a group as the other members know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberContext {
    pub id: NodeId,
    /// What it calls itself.
    pub hostname: String,
    /// Its address, if it has one for good: a reservation, or a lease that it holds.
    pub address: Option<Ipv4Addr>,
}

impl NodeContext {
    /// A node in no group, without variables.
    pub fn new(id: NodeId, name: Option<String>) -> Self {
        NodeContext { id, name, vars: Vars::new(), groups: Vec::new() }
    }

    /// What the node calls itself.
    pub fn hostname(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("node-{}", self.id))
    }
}
