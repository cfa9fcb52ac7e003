//! A boot session: one power-on of one machine with the time of every stage.
//!
//! DHCP opens it; everything that a machine may be given is given inside it. It is kept with the node afterwards, so that
//! "why did this boot take so long" has an answer tomorrow. Beside its stages it holds what held it up: the times that the
//! machine was told to wait, and the times that it stopped ([`Stall`]).

use super::{
    stage::{Stage, StageMark},
    stall::Stall,
};
use crate::fleet::RelayPort;
use meshd_types::{BootSessionId, ClientArch, MacAddr, NodeId, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, time::Duration};

/// How long after its last DHCP exchange a machine may still be given a capability.
pub const SESSION_WINDOW: Duration = Duration::from_secs(5 * 60);
/// How long a machine that has its script may take to come online before it counts as off.
pub const LONGEST_BOOT: Duration = Duration::from_secs(30 * 60);
/// Reasons to wait that are told apart in one session.
const MAX_WAITS: usize = 16;

/// A machine that waits in iPXE asks many times a minute; that it still does is written down once in this time.
pub const WAIT_NOTED: Duration = Duration::from_secs(60);

/// A machine was told to wait: refused in iPXE, or pending until an operator lets it in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Why, in one word: a refusal's code, or [`Wait::APPROVAL`].
    pub code: String,
    /// First time in this session.
    pub at: Timestamp,
    /// Last time in this session, give or take [`WAIT_NOTED`].
    pub last: Timestamp,
}

impl Wait {
    /// The node is known and not let in yet: only an operator ends that.
    pub const APPROVAL: &str = "approval";
}

/// One power-on of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSession {
    /// Its name in script, overlay and agent reports.
    pub id: BootSessionId,
    /// The NIC that boots.
    pub mac: MacAddr,
    /// The address that capabilities are bound to; `None` in proxy mode until the machine was heard to take one.
    pub address: Option<Ipv4Addr>,
    /// The node, once the script step has decided it.
    pub node: Option<NodeId>,
    /// Option 97 as DHCP saw it.
    pub uuid: Option<SystemUuid>,
    /// Option 93 of the firmware.
    pub arch: Option<ClientArch>,
    /// Which of all sessions it is: the store counts them. Clocks are set; this goes up.
    #[serde(default)]
    pub order: u64,
    /// First DHCP exchange.
    pub opened_at: Timestamp,
    /// Last DHCP exchange by firmware or iPXE; [`SESSION_WINDOW`] counts from here.
    pub refreshed_at: Timestamp,
    /// Stages in the order in which they were first seen.
    pub stages: Vec<StageMark>,
    /// What the machine was told to wait for, one entry for each reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// The times that this boot stopped; the last one is open while `ended` is not set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalls: Vec<Stall>,
    /// An operator told the node to reboot: how this session ended is no failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reboot_ordered: bool,
    /// The boots before this one were found to be a loop, and that was recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub looping: bool,
    /// Where the machine is plugged in behind a relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_port: Option<RelayPort>,
    /// A relay passes its DHCP packets on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_relayed: bool,
    /// It was ended, because its address changed in a way that its own machine does not cause. Nothing is given in it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
}

/// What a DHCP exchange means for the boot session of its MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpExchange {
    /// Firmware that is not iPXE.
    Firmware,
    /// iPXE, from flash or just loaded.
    Ipxe,
    /// An operating system.
    Os,
}

/// How a boot stands, or how it ended when a newer one has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It came online.
    Online,
    /// An operator told it to reboot before it was online.
    Ordered,
    /// The last that it was told is to wait.
    Waiting,
    /// It came as far as this, and no farther.
    Stopped(Stage),
}

/// A boot in one word, for listings and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootStatus {
    /// Under way.
    Booting,
    /// Told to wait.
    Waiting,
    /// Under way and standing still.
    Stalled,
    /// Came online.
    Online,
    /// Over before it was online, by an operator's word.
    Rebooted,
    /// Over before it was online.
    Stopped,
}

impl BootStatus {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            BootStatus::Booting => "booting",
            BootStatus::Waiting => "waiting",
            BootStatus::Stalled => "stalled",
            BootStatus::Online => "online",
            BootStatus::Rebooted => "rebooted",
            BootStatus::Stopped => "stopped",
        }
    }
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
            order: 0,
            opened_at: now,
            refreshed_at: now,
            stages: Vec::new(),
            waits: Vec::new(),
            stalls: Vec::new(),
            reboot_ordered: false,
            looping: false,
            relay_port: None,
            is_relayed: false,
            ended: false,
        };
        session.mark(stage, now);
        session
    }

    /// Records that a stage was seen; true if it is new in this session. A boot that goes on is no longer stalled.
    pub fn mark(&mut self, stage: Stage, now: Timestamp) -> bool {
        if let Some(mark) = self.stages.iter_mut().find(|mark| mark.stage == stage) {
            mark.last = now;
            mark.count = mark.count.saturating_add(1);
            return false;
        }
        self.stages.push(StageMark { stage, at: now, last: now, count: 1 });
        if let Some(stall) = self.stalls.last_mut() {
            stall.ended.get_or_insert(now);
        }
        true
    }

    /// Records that the machine was told to wait; true if that reason is new in this session.
    pub fn told_to_wait(&mut self, code: &str, now: Timestamp) -> bool {
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.code == code) {
            wait.last = now;
            return false;
        }
        if self.waits.len() < MAX_WAITS {
            self.waits.push(Wait { code: code.to_owned(), at: now, last: now });
        }
        true
    }

    /// Whether [`BootSession::told_to_wait`] would write down anything worth a write.
    pub fn is_wait_news(&self, code: &str, now: Timestamp) -> bool {
        match self.waits.iter().find(|wait| wait.code == code) {
            Some(wait) => now.since(wait.last) >= WAIT_NOTED,
            None => self.waits.len() < MAX_WAITS,
        }
    }

    /// The last time that a stage was seen, or `None`.
    pub fn reached(&self, stage: Stage) -> Option<Timestamp> {
        self.stages.iter().find(|mark| mark.stage == stage).map(|mark| mark.last)
    }

    /// The stage farthest along the chain.
    pub fn furthest(&self) -> Option<Stage> {
        self.stages.iter().map(|mark| mark.stage).max()
    }

    /// The newest reason to wait, if the machine waits for it: it does DHCP again and again meanwhile, and nothing else.
    pub fn waiting(&self) -> Option<&Wait> {
        let newest = self.waits.iter().max_by_key(|wait| wait.last)?;
        let went_on = self.stages.iter().any(|mark| {
            let told_to_boot = mark.stage == Stage::Script && mark.last > newest.last;
            mark.at > newest.last || told_to_boot || mark.last.since(newest.last) > WAIT_NOTED * 2
        });
        (!went_on).then_some(newest)
    }

    /// The stall that lasts, if the boot stands still.
    pub fn stalled(&self) -> Option<&Stall> {
        self.stalls.last().filter(|stall| stall.ended.is_none())
    }

    /// How the boot stands.
    pub fn outcome(&self) -> Outcome {
        match self.furthest() {
            Some(Stage::Online) => Outcome::Online,
            _ if self.reboot_ordered => Outcome::Ordered,
            _ if self.waiting().is_some() => Outcome::Waiting,
            stage => Outcome::Stopped(stage.unwrap_or(Stage::Dhcp)),
        }
    }

    /// The same in one word; a boot that is `over` was followed by a newer one of its machine.
    pub fn standing(&self, over: bool) -> BootStatus {
        match self.outcome() {
            Outcome::Online => BootStatus::Online,
            Outcome::Ordered => BootStatus::Rebooted,
            Outcome::Waiting => BootStatus::Waiting,
            Outcome::Stopped(_) if over => BootStatus::Stopped,
            Outcome::Stopped(_) if self.stalled().is_some() => BootStatus::Stalled,
            Outcome::Stopped(_) => BootStatus::Booting,
        }
    }

    /// True while the machine boots from its address: nobody may take the address away. Before its script the machine may still
    /// find that it cannot have the address.
    pub fn holds_address(&self, now: Timestamp) -> bool {
        let begun = self.reached(Stage::Script).is_some_and(|at| now.since(at) <= LONGEST_BOOT);
        begun && !self.ended && self.reached(Stage::Online).is_none()
    }

    /// True while a capability may be given out in this session.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        if self.ended {
            return false;
        }
        // Either way: after the clock was set back, what was before is not fresh until it is that time again.
        now.since(self.refreshed_at).max(self.refreshed_at.since(now)) <= SESSION_WINDOW
    }

    /// Whether a DHCP exchange belongs to this session. A machine that has fetched everything that iPXE fetches and asks as
    /// firmware or iPXE again has been powered on anew. iPXE that asks before is still at it: chainloaded, waiting out a
    /// refusal, or trying again because a file did not come; one power-on is one session, however often it tries.
    pub fn continues(&self, exchange: DhcpExchange, now: Timestamp) -> bool {
        let has_run = [Stage::Overlay, Stage::OsDhcp].into_iter().any(|stage| self.reached(stage).is_some());
        if self.ended {
            return false;
        }
        match exchange {
            // A machine that gave up and started from its disk asks as an operating system too; that is not this boot.
            DhcpExchange::Os => self.stages.iter().any(|mark| mark.stage >= Stage::Script),
            DhcpExchange::Ipxe => !has_run && self.is_fresh(now),
            // DISCOVER and REQUEST of one firmware exchange are seconds apart; after its loader it never asks again.
            DhcpExchange::Firmware => {
                let past = [Stage::Loader, Stage::IpxeDhcp, Stage::Script, Stage::Kernel];
                !has_run && past.into_iter().all(|stage| self.reached(stage).is_none()) && self.is_fresh(now)
            }
        }
    }
}

#[cfg(test)]
#[path = "boot_session_tests.rs"]
mod tests;
