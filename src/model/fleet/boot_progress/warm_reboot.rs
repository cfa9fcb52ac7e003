//! How a node carried out its last order to reboot without its firmware. Events are removed in
//! time; this record stays until the next such order.

use super::{boot_session::BootSession, stage::Stage};
use meshd_proto::warm_boot::ColdBootCause;
use meshd_types::{BootSessionId, OperationId, Timestamp};
use serde::{Deserialize, Serialize};

/// The last ordered warm reboot of a node that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmReboot {
    pub operation: OperationId,
    pub at: Timestamp,
    pub result: WarmRebootResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum WarmRebootResult {
    /// The node started this boot by kexec.
    Warm {
        session: BootSessionId,
    },
    Cold(ColdBoot),
}

/// Why a node booted through its firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdBoot {
    #[serde(default)]
    pub cause: ColdBootCause,
    pub reason: String,
}

impl WarmReboot {
    /// Returns why the node booted through its firmware; `None` if its warm boot is online or in
    /// progress.
    pub fn cold_boot(&self) -> Option<&ColdBoot> {
        match &self.result {
            WarmRebootResult::Cold(cold) => Some(cold),
            WarmRebootResult::Warm { .. } => None,
        }
    }

    /// Returns the warm boot that the node started.
    pub fn warm_boot(&self) -> Option<BootSessionId> {
        match self.result {
            WarmRebootResult::Warm { session } => Some(session),
            WarmRebootResult::Cold(_) => None,
        }
    }

    /// Records that the node boots again after this warm boot. A warm boot that has not come online
    /// counts as a boot through the firmware.
    pub fn end_warm_boot(&mut self, boot: &BootSession, now: Timestamp) {
        if self.warm_boot() != Some(boot.id) || boot.reached(Stage::Online).is_some() {
            return;
        }
        let id = boot.id;
        self.at = now;
        self.result = WarmRebootResult::Cold(ColdBoot {
            cause: ColdBootCause::NotOnline,
            reason: format!("warm boot {id} did not come online, and the machine booted again"),
        });
    }
}

/// Returns what an operator changes so that the next warm reboot is warm.
pub fn cold_boot_remedy(cause: ColdBootCause) -> &'static str {
    match cause {
        ColdBootCause::NotAllowed => "set warm = \"allow\" in the profile, and reload the site",
        ColdBootCause::UrlDelivery => "set [boot].delivery = \"initrd\"",
        ColdBootCause::HardwareChanged => {
            "look at the machine, then clear the condition hardware_changed"
        }
        ColdBootCause::NotOnline => {
            "look at the log of that boot; after a cold boot that is online, the next one is warm"
        }
        ColdBootCause::BootQueue => "raise [boot].max_loading, or reboot fewer nodes at once",
        ColdBootCause::VfioDevice => {
            "only the firmware resets such devices: remove warm = \"allow\" from the profile"
        }
        ColdBootCause::Memory => "end work on the node before the reboot",
        ColdBootCause::KernelLoad => {
            "use a kernel with CONFIG_KEXEC_FILE and without lockdown, or remove warm = \"allow\""
        }
        ColdBootCause::NoReport => "look at the log of the agent in the boot before",
        ColdBootCause::Other => "remove what the reason names, or look at the log of the agent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::MacAddr;

    fn boot(number: u8, stage: Stage) -> BootSession {
        let id = BootSessionId([number; 12]);
        BootSession::open(id, MacAddr([2; 6]), stage, Timestamp::from_millis(1))
    }

    #[test]
    fn warm_boot_that_was_followed_by_another_is_cold_unless_it_was_online() {
        let at = Timestamp::from_millis(1);
        let now = Timestamp::from_millis(2);
        let warm = |session| WarmReboot {
            operation: OperationId([1; 4]),
            at,
            result: WarmRebootResult::Warm { session },
        };
        let loading = boot(2, Stage::Script);
        let mut reboot = warm(loading.id);
        assert_eq!(reboot.cold_boot(), None, "in progress");
        reboot.end_warm_boot(&boot(3, Stage::Script), now);
        assert_eq!(reboot.cold_boot(), None, "another boot ended");
        reboot.end_warm_boot(&loading, now);
        assert_eq!(reboot.cold_boot().map(|cold| cold.cause), Some(ColdBootCause::NotOnline));
        assert_eq!(reboot.at, now);
        let online = boot(2, Stage::Online);
        let mut reboot = warm(online.id);
        reboot.end_warm_boot(&online, now);
        assert_eq!(reboot, warm(online.id));
    }
}
