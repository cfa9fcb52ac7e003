//! The stages of a boot, in the order of the chain.

use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::VariantArray as _;

/// The stages of the boot chain, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    /// DHCP exchange of the firmware.
    Dhcp,
    /// Firmware fetched iPXE.
    Loader,
    /// DHCP exchange of iPXE.
    IpxeDhcp,
    /// iPXE fetched a boot script.
    Script,
    /// The kernel was fetched.
    Kernel,
    /// The initramfs was fetched.
    Initramfs,
    /// The packages were fetched.
    Packages,
    /// The overlay was fetched completely.
    Overlay,
    /// DHCP exchange of Linux.
    OsDhcp,
    /// `mesh-init` verified the overlay and fetched the kernel modules.
    Modloop,
    /// Stage 1 fetched the root of an image of kind `root`.
    Root,
    /// The agent has a certificate of this session.
    Enrolled,
    /// The agent's link is up.
    Link,
    /// All checks pass.
    Online,
}

impl Stage {
    /// Stages that only a running Linux reaches, before the agent.
    pub const OF_LINUX: [Stage; 3] = [Stage::OsDhcp, Stage::Modloop, Stage::Root];
    /// Every stage, in the order of the chain.
    pub const ALL: [Stage; Stage::VARIANTS.len()] =
        *Stage::VARIANTS.first_chunk().expect("the same length");
}

as_str!(Stage);

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// First and last time of a stage in a session; a stage repeats when iPXE retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StageMark {
    pub stage: Stage,
    /// First time in this session.
    pub at: Timestamp,
    /// Last time in this session.
    pub last: Timestamp,
    /// Number of times that the stage was reached.
    pub count: u32,
}
