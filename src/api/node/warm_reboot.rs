//! The last order to reboot a node without its firmware.

use meshd_model::fleet::{BootSession, ColdBoot, WarmReboot, cold_boot_remedy};
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
    /// Creates the view of a record. `boots` are the boots of the node, the newest first.
    pub fn new<'a>(reboot: &WarmReboot, boots: impl IntoIterator<Item = &'a BootSession>) -> Self {
        let cold = reboot.cold_boot(boots).map(|ColdBoot { cause, reason }| ColdBootView {
            cause,
            reason,
            remedy: cold_boot_remedy(cause).to_owned(),
        });
        WarmRebootView { operation: reboot.operation, at: reboot.at, cold }
    }
}
