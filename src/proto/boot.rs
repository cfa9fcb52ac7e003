//! The agent's configuration in an overlay: a public part, and a small part for one boot.

use meshd_types::{BootSessionId, NodeId, Secret, Timestamp, VfioSelector};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Where [`AgentConfig`] lies on a node. Public: the same bytes at every boot of one generation.
pub const AGENT_CONFIG_FILE: &str = "/etc/meshd/agent.json";
/// Where [`BootPart`] lies on a node, mode 0600.
pub const BOOT_FILE: &str = "/etc/meshd/boot.json";

/// How the agent finds its central node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// [`super::VERSION`].
    pub version: u16,
    /// The ID that the script step decided; sysfs that yields another is reported, not obeyed.
    pub node: NodeId,
    /// The central node's address on the segment that this node booted from.
    pub central: Ipv4Addr,
    /// Port of the agent plane.
    pub port: u16,
    /// Certificate authority of the site, PEM, where [`BootPart::roots_pem`] has none.
    pub ca_file: String,
    /// Seconds between heartbeats.
    pub heartbeat_s: u32,
    /// Profile that this overlay was rendered for.
    pub profile: String,
    /// OpenRC services that the profile wants running, checked before the node counts as ready.
    #[serde(default)]
    pub services: Vec<String>,
    /// What the profile says of the readiness checks.
    #[serde(default, skip_serializing_if = "CheckPolicy::is_default")]
    pub checks: CheckPolicy,
    /// PCI functions that the profile gives to virtual machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfio: Vec<VfioSelector>,
    /// Disks that are never given away, by what they call themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_disks: Vec<String>,
    /// An overlay of the profile loads KVM: the node is to run virtual machines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kvm: bool,
}

/// Every readiness check that a profile may name. An agent has no check that is not here.
pub const CHECKS: [&str; 12] =
    ["services", "identity", "clock", "memory", "network", "nat", "kvm", "iommu", "vfio", "units", "store", "images"];

/// What a profile says of the readiness checks of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckPolicy {
    /// Checks that do not count as they stand, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, CheckRule>,
    /// What checks compare with.
    #[serde(skip_serializing_if = "Thresholds::is_default")]
    pub thresholds: Thresholds,
}

/// How a check counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CheckRule {
    /// A failure keeps the node from being online.
    #[default]
    On,
    /// A failure is a warning.
    Warn,
    /// It is skipped.
    Off,
}

/// What checks compare with; `None` leaves it to the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thresholds {
    /// Least memory that must be available, in MiB; less is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Farthest that the node's clock may be from the central node's, in seconds; more is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset_s: Option<u64>,
    /// Least room for virtual machines, in GB; less is a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_warn_gb: Option<u64>,
    /// Least room for virtual machines, in GB; less is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_fail_gb: Option<u64>,
}

impl CheckPolicy {
    /// How a check counts.
    pub fn rule(&self, check: &str) -> CheckRule {
        self.rules.get(check).copied().unwrap_or_default()
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Thresholds {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl CheckRule {
    /// The word that is written.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What an overlay would tell the agent, for a machine that is not netbooted: one file, given to its agent by hand, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The public part.
    pub config: AgentConfig,
    /// The part with the token; its session stands for the one use of this ticket.
    pub boot: BootPart,
}

/// The per-boot member of an overlay. It is in no cache and no log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootPart {
    /// [`super::VERSION`].
    pub version: u16,
    /// The node that this overlay was made for.
    pub node: NodeId,
    /// The power-on that it was made for.
    pub session: BootSessionId,
    /// Digest of everything public that determined this boot.
    pub generation: String,
    /// When the overlay was delivered: the clock of the node is at least this.
    pub issued_at: Timestamp,
    /// The roots of the site's authority as they were then, PEM; an older overlay has them in [`AgentConfig::ca_file`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots_pem: Option<String>,
    /// The one-time token; absent for a node that is not approved. The agent removes it from the file once used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret<String>>,
}
