//! A boot session: one power-on of one machine, with every stage and its time.
//!
//! DHCP opens it; everything that a machine may be given is given inside it. It is kept with the node afterwards, so that
//! "why did this boot take so long" has an answer tomorrow.

use crate::id::{BootSessionId, ClientArch, MacAddr, NodeId, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, time::Duration};

/// How long after its last DHCP exchange a machine may still be given a capability.
pub const SESSION_WINDOW: Duration = Duration::from_secs(5 * 60);

/// The stages of the boot chain, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Firmware asked for an address.
    Dhcp,
    /// Firmware fetched iPXE.
    Loader,
    /// iPXE asked for an address.
    IpxeDhcp,
    /// iPXE asked what to do.
    Script,
    /// The kernel was fetched.
    Kernel,
    /// The initramfs was fetched.
    Initramfs,
    /// The packages were fetched.
    Packages,
    /// The overlay was fetched whole.
    Overlay,
    /// Linux asked for an address.
    OsDhcp,
    /// `mesh-init` fetched the kernel modules: the overlay was found good.
    Modloop,
    /// The agent has a certificate of this session.
    Enrolled,
    /// The agent's link is up.
    Link,
    /// All checks pass.
    Online,
}

impl Stage {
    /// The word that is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Dhcp => "dhcp",
            Stage::Loader => "loader",
            Stage::IpxeDhcp => "ipxe_dhcp",
            Stage::Script => "script",
            Stage::Kernel => "kernel",
            Stage::Initramfs => "initramfs",
            Stage::Packages => "packages",
            Stage::Overlay => "overlay",
            Stage::OsDhcp => "os_dhcp",
            Stage::Modloop => "modloop",
            Stage::Enrolled => "enrolled",
            Stage::Link => "link",
            Stage::Online => "online",
        }
    }
}

/// When a stage was first and last seen in this session; a stage repeats when iPXE tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMark {
    /// Which stage.
    pub stage: Stage,
    /// First time in this session.
    pub at: Timestamp,
    /// Last time in this session.
    pub last: Timestamp,
    /// How often.
    pub count: u32,
}

/// One power-on of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSession {
    /// Its name in script, overlay and agent reports.
    pub id: BootSessionId,
    /// The NIC that boots.
    pub mac: MacAddr,
    /// The address that capabilities are bound to; `None` in proxy mode until the script is asked for.
    pub address: Option<Ipv4Addr>,
    /// The node, once the script step has decided it.
    pub node: Option<NodeId>,
    /// Option 97 as DHCP saw it.
    pub uuid: Option<SystemUuid>,
    /// Option 93 of the firmware.
    pub arch: Option<ClientArch>,
    /// First DHCP exchange.
    pub opened_at: Timestamp,
    /// Last DHCP exchange by firmware or iPXE; [`SESSION_WINDOW`] counts from here.
    pub refreshed_at: Timestamp,
    /// Stages in the order in which they were first seen.
    pub stages: Vec<StageMark>,
}

/// What a DHCP exchange means for the boot session of its MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Firmware that is not iPXE.
    Firmware,
    /// iPXE, from flash or just loaded.
    Ipxe,
    /// An operating system.
    Os,
}

impl BootSession {
    /// Opens a session with its first stage.
    pub fn open(id: BootSessionId, mac: MacAddr, stage: Stage, now: Timestamp) -> Self {
        let mut session = BootSession {
            id,
            mac,
            address: None,
            node: None,
            uuid: None,
            arch: None,
            opened_at: now,
            refreshed_at: now,
            stages: Vec::new(),
        };
        session.mark(stage, now);
        session
    }

    /// Records that a stage was seen; true if it is new in this session.
    pub fn mark(&mut self, stage: Stage, now: Timestamp) -> bool {
        if let Some(mark) = self.stages.iter_mut().find(|mark| mark.stage == stage) {
            mark.last = now;
            mark.count = mark.count.saturating_add(1);
            return false;
        }
        self.stages.push(StageMark { stage, at: now, last: now, count: 1 });
        true
    }

    /// The last time that a stage was seen, or `None`.
    pub fn reached(&self, stage: Stage) -> Option<Timestamp> {
        self.stages.iter().find(|mark| mark.stage == stage).map(|mark| mark.last)
    }

    /// The stage farthest along the chain.
    pub fn furthest(&self) -> Option<Stage> {
        self.stages.iter().map(|mark| mark.stage).max()
    }

    /// True while a capability may be given out in this session.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        now.since(self.refreshed_at) <= SESSION_WINDOW
    }

    /// Whether a DHCP exchange belongs to this session. A machine that has fetched its kernel and asks as firmware or iPXE
    /// again has been powered on anew; iPXE that asks before is still at it: chainloaded, or waiting out a refusal.
    pub fn continues(&self, exchange: Exchange, now: Timestamp) -> bool {
        let running = self.reached(Stage::Kernel).is_some();
        match exchange {
            Exchange::Os => true,
            Exchange::Ipxe => !running && self.is_fresh(now),
            // DISCOVER and REQUEST of one firmware exchange are seconds apart; after its loader it never asks again.
            Exchange::Firmware => {
                !running
                    && self.reached(Stage::Loader).is_none()
                    && self.reached(Stage::IpxeDhcp).is_none()
                    && self.is_fresh(now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> BootSession {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        BootSession::open(BootSessionId([7; 12]), mac, Stage::Dhcp, Timestamp::from_millis(0))
    }

    #[test]
    fn firmware_loader_and_ipxe_of_one_power_on_are_one_session() {
        let mut session = session();
        let now = Timestamp::from_millis(4_000);
        assert!(session.continues(Exchange::Firmware, now));
        session.mark(Stage::Loader, now);
        assert!(session.continues(Exchange::Ipxe, now));
    }

    #[test]
    fn a_machine_that_ran_a_kernel_and_asks_as_firmware_again_was_powered_on_anew() {
        let mut session = session();
        let now = Timestamp::from_millis(90_000);
        session.mark(Stage::Kernel, now);
        assert!(!session.continues(Exchange::Firmware, now));
        assert!(!session.continues(Exchange::Ipxe, now));
        assert!(session.continues(Exchange::Os, now));
    }

    #[test]
    fn firmware_that_asks_again_after_its_loader_was_reset() {
        let mut session = session();
        session.mark(Stage::Loader, Timestamp::from_millis(1));
        assert!(!session.continues(Exchange::Firmware, Timestamp::from_millis(2)));
    }

    #[test]
    fn a_session_is_stale_five_minutes_after_its_last_exchange() {
        let session = session();
        assert!(session.is_fresh(Timestamp::from_millis(300_000)));
        assert!(!session.is_fresh(Timestamp::from_millis(300_001)));
    }

    #[test]
    fn a_repeated_stage_keeps_its_first_time_and_counts() {
        let mut session = session();
        assert!(session.mark(Stage::Script, Timestamp::from_millis(5)));
        assert!(!session.mark(Stage::Script, Timestamp::from_millis(9)));
        let mark = session.stages[1];
        assert_eq!((mark.at.millis(), mark.last.millis(), mark.count), (5, 9, 2));
    }
}
