//! The last order to reboot a node without its firmware.

use meshd_model::fleet::{ColdBoot, Node, WarmReboot, cold_boot_remedy};
use meshd_proto::warm_boot::ColdBootCause;
use meshd_types::{OperationId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a node carried out its last order to reboot without its firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmRebootView {
    /// Operation of the order.
    pub operation: OperationId,
    /// Time of the result.
    pub at: Timestamp,
    /// Why the node booted through its firmware; absent if it started its boot by kexec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<ColdBootView>,
}

/// Why a node booted through its firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ColdBootView {
    pub cause: ColdBootCause,
    pub reason: String,
    /// What to change so that the next warm reboot is warm.
    pub remedy: String,
}

impl WarmRebootView {
    pub fn new(reboot: &WarmReboot) -> Self {
        let cold = reboot.cold_boot().map(|ColdBoot { cause, reason }| ColdBootView {
            cause: *cause,
            reason: reason.clone(),
            remedy: cold_boot_remedy(*cause).to_owned(),
        });
        WarmRebootView { operation: reboot.operation, at: reboot.at, cold }
    }

    /// Returns the view of a node that booted through its firmware instead.
    pub fn of_cold_boot(node: &Node) -> Option<Self> {
        node.warm_reboot.as_ref().map(Self::new).filter(|view| view.cold.is_some())
    }
}
