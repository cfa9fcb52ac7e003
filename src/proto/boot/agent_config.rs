//! The agent's configuration in an overlay: a public part, and a small part for one boot.

use meshd_types::{BootSessionId, NodeId, Secret, Timestamp, VfioSelector};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Path of [`AgentConfig`] on a node. Public: the same bytes at every boot of one generation.
pub const AGENT_CONFIG_FILE: &str = "/etc/meshd/agent.json";
/// Path of [`BootPart`] on a node, mode 0600.
pub const BOOT_FILE: &str = "/etc/meshd/boot.json";

/// Configuration of the agent of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// [`crate::VERSION`].
    pub version: u16,
    /// Node ID from the boot script. A different ID from sysfs is reported and ignored.
    pub node: NodeId,
    /// Address of the central node on the boot segment.
    pub central: Ipv4Addr,
    /// Port of the agent API.
    pub port: u16,
    /// Certificate authority of the site, PEM, if [`BootPart::roots_pem`] is absent.
    pub ca_file: String,
    /// Seconds between heartbeats.
    pub heartbeat_s: u32,
    /// Profile that this overlay was rendered for.
    pub profile: String,
    /// OpenRC services that must run before the node is ready.
    #[serde(default)]
    pub services: Vec<String>,
    /// Units of systemd that must run before the node is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub checks: CheckPolicy,
    /// PCI functions for VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfio: Vec<VfioSelector>,
    /// WWIDs or serial numbers of disks that are never assigned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_disks: Vec<String>,
    /// An overlay of the profile loads KVM: the node runs VMs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kvm: bool,
}

/// Names of all readiness checks.
pub const CHECKS: [&str; 13] = [
    "services",
    "identity",
    "clock",
    "memory",
    "network",
    "nat",
    "firewall",
    "kvm",
    "iommu",
    "vfio",
    "units",
    "store",
    VOLUMES_CHECK,
];
/// Name of the check of volumes of VMs, in messages of version 1 and in profiles.
pub const VOLUMES_CHECK: &str = "images";

/// Configuration of readiness checks in a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckPolicy {
    /// Checks with another rule than `on`, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, CheckRule>,
    #[serde(skip_serializing_if = "is_default")]
    pub thresholds: Thresholds,
}

/// The effect of a failed check.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CheckRule {
    /// The node does not become online.
    #[default]
    On,
    /// Warning only.
    Warn,
    /// The check is skipped.
    Off,
}

serialised_name!(CheckRule);

/// Thresholds of checks; `None` selects the default of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Thresholds {
    /// Minimum available memory in MiB; less is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Maximum clock difference to the central node in seconds; more is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset_s: Option<u64>,
    /// Minimum free space for VMs in GB; less is a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_warn_gb: Option<u64>,
    /// Minimum free space for VMs in GB; less is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_fail_gb: Option<u64>,
}

impl CheckPolicy {
    /// Returns the rule of a check.
    pub fn rule(&self, check: &str) -> CheckRule {
        self.rules.get(check).copied().unwrap_or_default()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Agent configuration with token in one file, for one use on a machine that does not netboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    pub config: AgentConfig,
    /// Contains the token. Its session ID identifies the use of the ticket.
    pub boot: BootPart,
}

/// The per-boot member of an overlay. Never cached or logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootPart {
    /// [`crate::VERSION`].
    pub version: u16,
    pub node: NodeId,
    pub session: BootSessionId,
    /// Digest of everything public that determined this boot.
    pub generation: String,
    /// Delivery time of the overlay: lower bound for the clock of the node.
    pub issued_at: Timestamp,
    /// Root certificates of the site, PEM; `None` leaves those in [`AgentConfig::ca_file`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots_pem: Option<String>,
    /// Port of the boot HTTP server.
    pub http_port: u16,
    /// One-time token; absent for a node that is not approved. The agent deletes it from the file
    /// after use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret<String>>,
}
