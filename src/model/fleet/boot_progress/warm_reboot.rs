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
    /// progress. `boots` are the boots of the node, the newest first.
    pub fn cold_boot<'a>(
        &self,
        boots: impl IntoIterator<Item = &'a BootSession>,
    ) -> Option<ColdBoot> {
        let session = match &self.result {
            WarmRebootResult::Cold(cold) => return Some(cold.clone()),
            WarmRebootResult::Warm { session } => *session,
        };
        let mut begun = boots.into_iter().filter(|boot| !boot.is_staged());
        let is_newest = begun.next()?.id == session;
        let boot = begun.find(|boot| boot.id == session)?;
        let has_failed = !is_newest && boot.reached(Stage::Online).is_none();
        has_failed.then(|| ColdBoot {
            cause: ColdBootCause::NotOnline,
            reason: format!(
                "warm boot {session} did not come online, and the machine booted again"
            ),
        })
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
        ColdBootCause::NoKexecProgram => "add the package kexec-tools to the image",
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
        let warm = |stage| {
            let boot = boot(2, stage);
            let result = WarmRebootResult::Warm { session: boot.id };
            let at = Timestamp::from_millis(1);
            (WarmReboot { operation: OperationId([1; 4]), at, result }, boot)
        };
        let next = boot(3, Stage::Dhcp);
        let (reboot, loading) = warm(Stage::Script);
        assert_eq!(reboot.cold_boot([&loading]), None, "in progress");
        let cold = reboot.cold_boot([&next, &loading]).expect("it booted again");
        assert_eq!(cold.cause, ColdBootCause::NotOnline);
        let (reboot, online) = warm(Stage::Online);
        assert_eq!(reboot.cold_boot([&next, &online]), None);
        assert_eq!(reboot.cold_boot([&next]), None, "its session is not on record any more");
        assert_eq!(reboot.cold_boot([]), None);
    }
}
