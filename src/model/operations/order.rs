//! What an order wants of a node.

use crate::fleet::LabelChange;
use meshd_types::{BootDevice, PowerAction, ProfileName, VarName, VarValue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Policy of a drain for running workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainPolicy {
    /// The drain waits until the workloads end.
    #[default]
    Wait,
    /// The drain stops the workloads.
    Stop,
}

/// An order to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum NodeOrder {
    /// `moved`: the node was moved to another relay port.
    Approve {
        moved: bool,
    },
    Reject,
    Quarantine,
    Release,
    Drain {
        workloads: DrainPolicy,
        /// Grace time of a stop, in seconds.
        grace_s: Option<u32>,
    },
    Maintenance,
    Resume,
    Remove,
    Fence,
    Reboot,
    /// By kexec, without the firmware, if the node can; else as `Reboot`.
    WarmReboot,
    AssignProfile {
        profile: ProfileName,
    },
    ChangeVars {
        set: BTreeMap<VarName, VarValue>,
        unset: Vec<VarName>,
    },
    Label {
        change: LabelChange,
    },
    /// Without a generation, each node is pinned to the one that it runs.
    Pin {
        generation: Option<String>,
    },
    Unpin,
    BootOnce {
        profile: Option<ProfileName>,
        kernel_args: Vec<String>,
    },
    ClearBootOnce,
    /// By the BMC of the machine. `now`: without a graceful shutdown.
    Power {
        action: PowerAction,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        now: bool,
    },
    BootDevice {
        device: BootDevice,
    },
    /// The identification light.
    Identify {
        on: bool,
    },
}

impl NodeOrder {
    /// True if a node carries the order out after it was given: the order is running until the node
    /// reports an effect. All other orders are changes of the store.
    pub fn takes_time(&self) -> bool {
        matches!(self, NodeOrder::Drain { .. }) || self.is_reboot() || self.needs_bmc()
    }

    /// True if the agent of the node restarts it.
    pub fn is_reboot(&self) -> bool {
        matches!(self, NodeOrder::Reboot | NodeOrder::WarmReboot)
    }

    /// True if the BMC of the machine carries the order out.
    pub fn needs_bmc(&self) -> bool {
        matches!(
            self,
            NodeOrder::Power { .. } | NodeOrder::BootDevice { .. } | NodeOrder::Identify { .. }
        )
    }

    /// True if the order ends what the machine runs.
    pub fn cuts_power(&self) -> bool {
        matches!(
            self,
            NodeOrder::Power {
                action: PowerAction::Off | PowerAction::Cycle | PowerAction::Reset,
                ..
            }
        )
    }

    /// True if an order takes a node out of service at once: it cancels earlier orders to the node
    /// that have not started. Other orders are refused while one is pending.
    pub fn withdraws_pending(&self) -> bool {
        matches!(
            self,
            NodeOrder::Reject | NodeOrder::Quarantine | NodeOrder::Remove | NodeOrder::Fence
        )
    }

    /// True if an order replaces an older running order of the same node. A fenced node has no work
    /// left that a drain waits for.
    pub fn replaces(&self, older: &NodeOrder) -> bool {
        if self.is_reboot() || matches!(self, NodeOrder::Power { .. }) {
            let is_power = matches!(older, NodeOrder::Power { .. }) && !self.is_reboot();
            return older.is_reboot() || is_power;
        }
        matches!(
            (self, older),
            (NodeOrder::Drain { .. } | NodeOrder::Fence, NodeOrder::Drain { .. })
                | (NodeOrder::BootDevice { .. }, NodeOrder::BootDevice { .. })
                | (NodeOrder::Identify { .. }, NodeOrder::Identify { .. })
        )
    }
}
