//! The inputs of a rendering: node, variables and groups.

use meshd_types::{Digest, GroupName, NodeId, OverlayName, Vars};
use std::{net::Ipv4Addr, sync::Arc};

/// Node-specific inputs of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    pub id: NodeId,
    /// Name by an operator or the site; otherwise `node-ID`.
    pub name: Option<String>,
    /// Variables of profile, groups and node; later ones take precedence.
    pub vars: Vars,
    /// Groups of the node, in the order in which their overlays are applied.
    pub groups: Vec<GroupContext>,
}

/// Group-specific inputs of its members' overlays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupContext {
    pub name: GroupName,
    /// Overlays that follow those of the profile.
    pub overlays: Vec<OverlayName>,
    /// Members ordered by ID; shared by the contexts of all members.
    pub members: Arc<[MemberContext]>,
}

/// A member of a group, for templates of other members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberContext {
    pub id: NodeId,
    pub hostname: String,
    /// Permanent address, if any: a reservation or a lease.
    pub address: Option<Ipv4Addr>,
    /// Hardware threads and memory, once the node has reported them.
    pub size: Option<MemberSize>,
}

/// Unit of [`MemberSize::memory_mib`]: the memory that Linux reports differs a little from boot to
/// boot and between kernels, and a changed template makes nodes `reboot_required`.
const MEMORY_STEP_MIB: u64 = 256;

/// The size of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberSize {
    pub threads: u32,
    /// Memory in MiB, rounded down to whole steps of 256 MiB.
    pub memory_mib: u64,
}

impl MemberSize {
    /// Returns the size of a node with this memory in KiB; `None` if it has reported nothing.
    pub fn of(threads: u32, memory_kib: u64) -> Option<Self> {
        let memory_mib = memory_kib / 1024 / MEMORY_STEP_MIB * MEMORY_STEP_MIB;
        (threads > 0).then_some(MemberSize { threads, memory_mib })
    }
}

impl NodeContext {
    /// Creates the context of a node without group and variables.
    pub fn new(id: NodeId, name: Option<String>) -> Self {
        NodeContext { id, name, vars: Vars::new(), groups: Vec::new() }
    }

    /// Returns the ID of the machine for systemd and D-Bus (machine-id(5)): 32 hexadecimal digits,
    /// the same at each boot.
    pub fn machine_id(&self) -> String {
        let digest = Digest::of_fields([b"machine-id".as_slice(), self.id.to_string().as_bytes()]);
        digest.to_string().chars().take(32).collect()
    }

    /// Returns the host name.
    pub fn hostname(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("node-{}", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_member_is_rounded_down_and_unknown_without_threads() {
        let memory = |kib: u64| MemberSize::of(2, kib).map(|size| size.memory_mib);
        assert_eq!(memory(2_006_000), Some(1792));
        assert_eq!(memory(2_006_000), memory(1_990_000), "another kernel reports a little less");
        assert_eq!(MemberSize::of(0, 2_006_000), None, "no facts");
    }
}
