//! A boot session: one power-on of one machine with the time of every stage.
//!
//! DHCP opens the session, and meshd grants capabilities within it. The session is stored with the
//! node to explain slow boots later. The record includes waits and stalls ([`Stall`]).

use super::{
    dhcp_attempt::{DhcpAttempt, DhcpClient, DhcpRequest, record_request},
    stage::{Stage, StageMark},
    stall::Stall,
};
use crate::fleet::RelayPort;
use meshd_types::{BootSessionId, ClientArch, MacAddr, NodeId, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::{net::Ipv4Addr, time::Duration};

/// Time after the last DHCP exchange in which a machine may receive a capability.
pub const SESSION_WINDOW: Duration = Duration::from_secs(5 * 60);
/// Time from the script to online after which a machine counts as off.
pub const LONGEST_BOOT: Duration = Duration::from_secs(30 * 60);
/// Maximum number of wait reasons in one session.
const MAX_WAITS: usize = 16;

/// Minimum interval between updates of a wait's record, because a waiting machine sends many
/// requests a minute.
pub const WAIT_NOTED: Duration = Duration::from_secs(60);

/// Maximum length of the explanation of a wait, in characters.
const MAX_WAIT_DETAIL: usize = 500;

/// A wait of the machine: refused, or pending approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Wait {
    /// Refusal code, or `approval`.
    pub code: String,
    /// First time in this session.
    pub at: Timestamp,
    /// Last time in this session, accurate to a minute.
    pub last: Timestamp,
    /// What is wrong, and its remedy; absent if the boot continues without an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Wait {
    /// The node waits for approval by an operator.
    pub const APPROVAL: &str = "approval";
    /// The node was online a moment ago, and nobody announced its reboot.
    pub const RECENTLY_ONLINE: &str = "recently_online";

    /// Returns the reason in words.
    pub fn reason(&self) -> String {
        match self.code.as_str() {
            Wait::APPROVAL => "waits for approval".to_owned(),
            "busy" => "waits in the boot queue".to_owned(),
            Wait::RECENTLY_ONLINE => {
                "waits until the node, which was just online, is silent for [agent].offline_after"
                    .to_owned()
            }
            code => format!("refused: {code}"),
        }
    }
}

/// One power-on of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootSession {
    /// Session ID in script, overlay and agent reports.
    pub id: BootSessionId,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    /// Address to which capabilities are bound; `None` in proxy mode until the machine takes one.
    pub address: Option<Ipv4Addr>,
    /// Node, once the script step identified it.
    pub node: Option<NodeId>,
    /// DHCP option 97.
    pub uuid: Option<SystemUuid>,
    /// DHCP option 93 of the firmware.
    pub arch: Option<ClientArch>,
    /// Sequence number of the session; unlike a clock, it never goes back.
    pub order: u64,
    /// First DHCP exchange.
    pub opened_at: Timestamp,
    /// Last DHCP exchange by firmware or iPXE; [`SESSION_WINDOW`] counts from here.
    pub refreshed_at: Timestamp,
    /// Stages in the order in which they were first reached.
    pub stages: Vec<StageMark>,
    /// Wait reasons, one entry for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Stalls of this boot; the last one is open while `ended` is not set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalls: Vec<Stall>,
    /// An operator ordered a reboot, so the end of this session is not a failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reboot_ordered: bool,
    /// The agent said goodbye in this boot and has no link since: the node shuts down or reboots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_stopped: bool,
    /// A boot loop before this session was recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub looping: bool,
    /// Switch port behind a relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_port: Option<RelayPort>,
    /// A relay forwards its DHCP packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_relayed: bool,
    /// The session was ended because its address changed suspiciously. The machine receives nothing
    /// in this session any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Reason why `mesh-init` or stage 1 refused to start the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// DHCP requests before the node was online, by program and architecture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhcp: Vec<DhcpAttempt>,
    /// The firmware tried to boot by IPv6 from this time on, before this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_since: Option<Timestamp>,
    /// The node fetched this boot over its link, and starts it by kexec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmState>,
}

/// How far a warm boot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmState {
    /// The node runs its former boot, and loads this one.
    Staged,
    /// As `Staged`, and the node has its overlay, which it gets once.
    Delivered,
    /// The node has loaded this boot, and starts it.
    Started,
}

/// Progress or result of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Online,
    /// An operator ordered a reboot before the node was online.
    Ordered,
    Waiting,
    /// The last stage that was reached.
    Stopped(Stage),
}

/// The state of a boot in one word, for listings and metrics.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum BootStatus {
    Booting,
    Waiting,
    /// The boot is in progress and stalled.
    Stalled,
    Online,
    /// An operator rebooted the node before it was online.
    Rebooted,
    /// The boot ended before the node was online.
    Stopped,
    /// `mesh-init` or stage 1 refused to start the node and reported why.
    Failed,
}

as_str!(BootStatus);

impl BootStatus {
    /// Returns true if the time of the boot runs on.
    pub fn is_unfinished(self) -> bool {
        matches!(self, BootStatus::Booting | BootStatus::Waiting | BootStatus::Stalled)
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
            agent_stopped: false,
            looping: false,
            relay_port: None,
            is_relayed: false,
            ended: false,
            failure: None,
            dhcp: Vec::new(),
            ipv6_since: None,
            warm: None,
        };
        session.mark(stage, now);
        session
    }

    /// Records a stage and ends an open stall. Returns true if the stage is new in this session.
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

    /// Records a DHCP request of this boot.
    pub fn record_dhcp(&mut self, request: DhcpRequest, now: Timestamp) {
        if self.reached(Stage::Online).is_none() {
            record_request(&mut self.dhcp, request, now);
        }
    }

    /// Records a wait; returns true if its reason is new in this session.
    pub fn record_wait(&mut self, code: &str, now: Timestamp) -> bool {
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.code == code) {
            wait.last = now;
            return false;
        }
        if self.waits.len() < MAX_WAITS {
            self.waits.push(Wait { code: code.to_owned(), at: now, last: now, detail: None });
        }
        true
    }

    /// Explains a recorded wait. The newest explanation counts.
    pub fn explain_wait(&mut self, code: &str, detail: &str) {
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.code == code) {
            wait.detail = Some(detail.chars().take(MAX_WAIT_DETAIL).collect());
        }
    }

    /// Returns true if [`BootSession::record_wait`] would change the record significantly.
    pub fn is_new_wait(&self, code: &str, now: Timestamp) -> bool {
        match self.waits.iter().find(|wait| wait.code == code) {
            Some(wait) => now.distance(wait.last) >= WAIT_NOTED,
            None => self.waits.len() < MAX_WAITS,
        }
    }

    /// Returns the last time at which a stage was reached.
    pub fn reached(&self, stage: Stage) -> Option<Timestamp> {
        self.stages.iter().find(|mark| mark.stage == stage).map(|mark| mark.last)
    }

    /// Returns the latest stage of the chain.
    pub fn furthest(&self) -> Option<Stage> {
        self.stages.iter().map(|mark| mark.stage).max()
    }

    /// Returns the newest wait, unless the boot has continued since. A waiting machine only repeats
    /// DHCP.
    pub fn waiting(&self) -> Option<&Wait> {
        let newest = self.waits.iter().max_by_key(|wait| wait.last)?;
        let has_continued = self.stages.iter().any(|mark| {
            let may_boot = mark.stage == Stage::Script && mark.last > newest.last;
            mark.at > newest.last || may_boot || mark.last.since(newest.last) > WAIT_NOTED * 2
        });
        (!has_continued).then_some(newest)
    }

    /// Returns the begin and the end of the wait for approval. The certificate ends the wait; a
    /// pending wait ends at `running_until`.
    pub fn approval_wait(&self, running_until: Option<Timestamp>) -> Option<[Timestamp; 2]> {
        let wait = self.waits.iter().find(|wait| wait.code == Wait::APPROVAL)?;
        let passed =
            self.stages.iter().find(|mark| mark.stage >= Stage::Enrolled && mark.at >= wait.at);
        Some([wait.at, passed.map(|mark| mark.at).or(running_until).unwrap_or(wait.last)])
    }

    /// Returns true if the node runs its former boot, and loads this one, or failed to load it.
    pub fn is_staged(&self) -> bool {
        matches!(self.warm, Some(WarmState::Staged | WarmState::Delivered))
    }

    /// Returns true if the end of this boot was announced: by the order of an operator, or by the
    /// node's agent.
    pub fn is_end_announced(&self) -> bool {
        self.reboot_ordered || self.agent_stopped
    }

    /// Returns true if the script of this boot was requested while the node could still be running
    /// elsewhere.
    pub fn was_unannounced(&self) -> bool {
        self.waits.iter().any(|wait| wait.code == Wait::RECENTLY_ONLINE)
    }

    /// Returns the open stall.
    pub fn stalled(&self) -> Option<&Stall> {
        self.stalls.last().filter(|stall| stall.ended.is_none())
    }

    /// Returns the progress or result of the boot.
    pub fn outcome(&self) -> Outcome {
        match self.furthest() {
            Some(Stage::Online) => Outcome::Online,
            _ if self.reboot_ordered => Outcome::Ordered,
            _ if self.waiting().is_some() => Outcome::Waiting,
            stage => Outcome::Stopped(stage.unwrap_or(Stage::Dhcp)),
        }
    }

    /// Returns the state of the boot. `over`: a newer session of the machine exists.
    pub fn standing(&self, over: bool) -> BootStatus {
        match self.outcome() {
            Outcome::Online => BootStatus::Online,
            Outcome::Ordered => BootStatus::Rebooted,
            Outcome::Waiting => BootStatus::Waiting,
            Outcome::Stopped(_) if self.failure.is_some() => BootStatus::Failed,
            Outcome::Stopped(_) if over => BootStatus::Stopped,
            Outcome::Stopped(_) if self.stalled().is_some() => BootStatus::Stalled,
            Outcome::Stopped(_) => BootStatus::Booting,
        }
    }

    /// Returns true while the machine boots from its address, which must stay reserved. Before its
    /// script the machine may still decline the address.
    pub fn holds_address(&self, now: Timestamp) -> bool {
        self.script_of_running_boot().is_some_and(|at| now.distance(at) <= LONGEST_BOOT)
    }

    /// Returns the time until which [`BootSession::holds_address`].
    pub fn holds_address_until(&self) -> Option<Timestamp> {
        self.script_of_running_boot().map(|at| at.after(LONGEST_BOOT))
    }

    fn script_of_running_boot(&self) -> Option<Timestamp> {
        let boots = !self.ended && self.reached(Stage::Online).is_none();
        self.reached(Stage::Script).filter(|_| boots)
    }

    /// Returns true while the session may receive a capability.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        if self.ended {
            return false;
        }
        // Compare in both directions: after the clock was set back, a time in the future is not
        // fresh.
        now.distance(self.refreshed_at) <= SESSION_WINDOW
    }

    /// Returns true if a DHCP exchange belongs to this session. An exchange of firmware or iPXE
    /// after everything was fetched is a new power-on. An earlier exchange of iPXE is the same
    /// boot: chainloaded, waiting, or retrying.
    pub fn continues(&self, client: DhcpClient, now: Timestamp) -> bool {
        let has_run = [Stage::Overlay, Stage::OsDhcp, Stage::Enrolled]
            .into_iter()
            .any(|stage| self.reached(stage).is_some());
        // Firmware and iPXE do not run in a warm boot.
        if self.ended || self.warm.is_some() && client != DhcpClient::Os {
            return false;
        }
        match client {
            // Before the script step, the DHCP exchange of an operating system is that of a boot
            // from disk: another boot.
            DhcpClient::Os => self.stages.iter().any(|mark| mark.stage >= Stage::Script),
            DhcpClient::Ipxe => !has_run && self.is_fresh(now),
            // DISCOVER and REQUEST of one firmware exchange are seconds apart. After its loader,
            // the firmware sends no further requests.
            DhcpClient::Firmware => {
                let past = [Stage::Loader, Stage::IpxeDhcp, Stage::Script, Stage::Kernel];
                !has_run
                    && past.into_iter().all(|stage| self.reached(stage).is_none())
                    && self.is_fresh(now)
            }
        }
    }
}

#[cfg(test)]
#[path = "boot_session_tests.rs"]
mod tests;
