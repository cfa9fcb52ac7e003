//! Decides whether a node may start its next boot by kexec, without its firmware.

use crate::fleet::{BootSession, ConditionKind, Node, Stage};
use meshd_config::{Delivery, Profile, Site, WarmPolicy};
use meshd_proto::warm_boot::ColdBootCause;
use meshd_types::{BootSessionId, ProfileName};

/// Why a node boots through its firmware.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColdBootReason {
    #[error("profile {profile} has no warm = \"allow\"")]
    NotAllowed { profile: ProfileName },
    #[error("[boot].delivery = \"url\" puts the URL of the overlay into /proc/cmdline")]
    Delivery,
    #[error("its hardware has changed, and the firmware initialises devices anew")]
    HardwareChanged,
    #[error("warm boot {session} did not come online, and no cold boot has since")]
    FailedBefore { session: BootSessionId },
}

impl ColdBootReason {
    pub fn cause(&self) -> ColdBootCause {
        match self {
            ColdBootReason::NotAllowed { .. } => ColdBootCause::NotAllowed,
            ColdBootReason::Delivery => ColdBootCause::UrlDelivery,
            ColdBootReason::HardwareChanged => ColdBootCause::HardwareChanged,
            ColdBootReason::FailedBefore { .. } => ColdBootCause::NotOnline,
        }
    }
}

/// Checks that the next boot of a node may be warm. `boots` are its boots, the newest first.
///
/// # Errors
/// The first reason for a boot through the firmware.
pub fn check_warm_boot<'a>(
    site: &Site,
    node: &Node,
    profile: &Profile,
    boots: impl IntoIterator<Item = &'a BootSession>,
) -> Result<(), ColdBootReason> {
    if profile.warm == WarmPolicy::Never {
        return Err(ColdBootReason::NotAllowed { profile: profile.name.clone() });
    }
    if site.boot.delivery == Delivery::Url {
        return Err(ColdBootReason::Delivery);
    }
    if node.conditions.iter().any(|condition| condition.kind == ConditionKind::HardwareChanged) {
        return Err(ColdBootReason::HardwareChanged);
    }
    match failed_warm_boot(boots) {
        Some(session) => Err(ColdBootReason::FailedBefore { session }),
        None => Ok(()),
    }
}

/// Returns the newest warm boot that was not online, if no later boot was.
fn failed_warm_boot<'a>(boots: impl IntoIterator<Item = &'a BootSession>) -> Option<BootSessionId> {
    boots
        .into_iter()
        .take_while(|boot| boot.reached(Stage::Online).is_none())
        .find(|boot| boot.warm.is_some())
        .map(|boot| boot.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::WarmState;
    use meshd_types::{MacAddr, Timestamp};

    fn boot(number: u8, warm: bool, stage: Stage) -> BootSession {
        let id = BootSessionId([number; 12]);
        let mut boot = BootSession::open(id, MacAddr([2; 6]), stage, Timestamp::from_millis(1));
        boot.warm = warm.then_some(WarmState::Started);
        boot
    }

    #[test]
    fn failed_warm_boot_counts_until_a_boot_was_online() {
        let failed = boot(3, true, Stage::Overlay);
        let online = boot(2, false, Stage::Online);
        assert_eq!(failed_warm_boot([&failed, &online]), Some(failed.id));
        // The cold boot after it has not come online.
        let booting = boot(4, false, Stage::Link);
        assert_eq!(failed_warm_boot([&booting, &failed, &online]), Some(failed.id));
        let cold = boot(5, false, Stage::Online);
        assert_eq!(failed_warm_boot([&cold, &failed, &online]), None);
        let warm = boot(6, true, Stage::Online);
        assert_eq!(failed_warm_boot([&warm, &cold, &failed]), None);
        assert_eq!(failed_warm_boot([]), None);
    }
}
