//! Detects stalled boots: the overdue stage, since when, and its likely cause.
//!
//! Each stage has a bound of time until the next one. The bounds are generous: slow firmware, a switch port that learns for
//! a minute, an emulated processor. What a machine was told to wait for is no stall.

use super::{
    boot_session::{BootSession, Wait},
    stage::Stage,
};
use meshd_config::{Delivery, Transport};
use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A machine that was told to wait asks again within this time, or is gone. The longest wait of a refusal is 5 minutes.
const WAIT_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// TFTP goes in lock step with many firmwares: a kernel that takes seconds by HTTP takes minutes.
const TFTP_FACTOR: u32 = 2;

/// A boot that stands still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The last stage that was reached.
    pub after: Stage,
    /// The stage that should have followed.
    pub missing: Stage,
    /// Since when nothing new has happened.
    pub since: Timestamp,
    /// The likely cause, and where to look.
    pub cause: String,
    /// When the boot went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

/// How the stages follow each other for one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// How kernel and initrds travel.
    pub transport: Transport,
    /// How the overlay travels: by URL, Linux fetches it, and iPXE does not.
    pub delivery: Delivery,
    /// Whether meshd leases this machine's address: else it does not see Linux ask for one.
    pub leases: bool,
}

impl Chain {
    /// The place of a stage in this chain.
    fn place(self, stage: Stage) -> usize {
        match (self.delivery, stage) {
            (Delivery::Url, Stage::Overlay) => Stage::OsDhcp as usize,
            (Delivery::Url, Stage::OsDhcp) => Stage::Overlay as usize,
            _ => stage as usize,
        }
    }

    /// The stage that follows, and how long that may take.
    fn next(self, after: Stage) -> Option<(Stage, Duration)> {
        let mut place = self.place(after);
        let mut bound = Duration::ZERO;
        loop {
            place += 1;
            let next = Stage::ALL.into_iter().find(|stage| self.place(*stage) == place)?;
            bound += self.bound(next);
            if next != Stage::OsDhcp || self.leases {
                return Some((next, bound));
            }
        }
    }

    /// How long a stage may take from the one before it.
    fn bound(self, stage: Stage) -> Duration {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        match stage {
            Stage::Dhcp => Duration::ZERO,
            // UEFI firmware under emulation tries other ways of booting for a minute each.
            Stage::Loader | Stage::IpxeDhcp | Stage::Script => minutes(3),
            Stage::Kernel | Stage::Initramfs | Stage::Packages => match self.transport {
                Transport::Http => minutes(5),
                Transport::Tftp => minutes(5) * TFTP_FACTOR,
            },
            Stage::Overlay => minutes(5),
            // Server hardware initialises for minutes; OpenRC under emulation takes one.
            Stage::OsDhcp | Stage::Modloop | Stage::Enrolled => minutes(10),
            Stage::Link => minutes(3),
            Stage::Online => minutes(5),
        }
    }
}

/// Whether a boot stands still. Nothing before `watched_since` counts as time in which something could have been seen: a
/// central node that was down is no fault of the machine.
pub fn stall(session: &BootSession, chain: Chain, watched_since: Timestamp, now: Timestamp) -> Option<Stall> {
    let last = session.stages.iter().max_by_key(|mark| chain.place(mark.stage))?;
    let (missing, mut bound) = chain.next(last.stage)?;
    let waiting = session.waiting();
    if waiting.is_some_and(|wait| wait.code == Wait::APPROVAL) {
        return None;
    }
    let told = session.waits.iter().map(|wait| wait.last).max();
    let since = told.map_or(last.at, |told| told.max(last.at));
    if waiting.is_some() {
        bound = bound.max(WAIT_PATIENCE);
    }
    if now.since(since.max(watched_since)) <= bound {
        return None;
    }
    let cause = match waiting {
        Some(wait) => format!(
            "it was told to wait ({}) and asked no more: switched off, or its network is gone. What refused it is in the timeline",
            wait.code
        ),
        None => cause(missing, last.count, chain),
    };
    Some(Stall { after: last.stage, missing, since, cause, ended: None })
}

/// The likely cause in words that an operator can act on.
fn cause(missing: Stage, tries: u32, chain: Chain) -> String {
    let again = |what: &str| if tries > 1 { format!("asked {tries} times; {what}") } else { what.to_owned() };
    let bulk = match chain.transport {
        Transport::Http => "does HTTP from the node reach [http].port?",
        Transport::Tftp => "does UDP from the node to ports above 1023 pass? TFTP answers from such a one",
    };
    match missing {
        Stage::Dhcp | Stage::Loader => again(
            "the firmware was answered and fetched no loader: is another DHCP or PXE server answering too, is UDP port 69 \
             blocked, or does the firmware's architecture have no loader? `meshd doctor` looks for all three",
        ),
        Stage::IpxeDhcp => "the loader was fetched and iPXE asked for no address: its network driver found no link (a switch \
             port that learns for long, a NIC that undionly.kpxe or snponly.efi does not drive), or Secure Boot refused it. \
             Look at the machine's screen; try ipxe.efi"
            .to_owned(),
        Stage::Script => again(
            "iPXE has an address and did not ask what to boot: does HTTP from the node reach [http].port, and is the address \
             in the DHCP answer the right one for its network?",
        ),
        Stage::Kernel => again(&format!(
            "the script was given and no kernel was fetched whole: {bulk} A cache in front that has it all hides this stage"
        )),
        Stage::Initramfs | Stage::Packages => {
            format!("a file of the image did not arrive whole: {bulk} Does the machine have enough memory? 1 GiB is little")
        }
        Stage::Overlay if chain.delivery == Delivery::Url => {
            "Linux runs and did not fetch its overlay: its NIC's driver is not in the image, or HTTP is blocked for it"
                .to_owned()
        }
        Stage::Overlay => "all files but the overlay were fetched: look at the machine's screen for what iPXE says; the \
             timeline has refusals"
            .to_owned(),
        Stage::OsDhcp => "Linux was given everything and asked for no address: it panicked early, or its NIC's driver is not \
             in the image. Look at its console"
            .to_owned(),
        Stage::Modloop => "Linux runs and did not fetch its kernel modules: mesh-init found its overlay or packages wanting, \
             or the package installation failed. Its console says which"
            .to_owned(),
        Stage::Enrolled => "the system runs and its agent did not report: is [agent].port blocked, is mesh-agent failing \
             (`rc-service mesh-agent status` on its console), or is its clock wrong by years?"
            .to_owned(),
        Stage::Link => "the agent has its certificate and opened no link: is the connection cut by a firewall, or does the \
             agent restart? Look at /var/log on the node"
            .to_owned(),
        Stage::Online => "the node is linked and its readiness checks do not pass; `meshd node show` names them".to_owned(),
    }
}

#[cfg(test)]
#[path = "stall_tests.rs"]
mod tests;
