//! Detects stalled boots: the overdue stage, since when, and its likely cause.
//!
//! Each stage has a timeout. Timeouts allow for slow firmware, a switch port that forwards after a
//! minute, and emulated CPUs. Waits are not stalls.

use super::{
    boot_session::{BootSession, Wait},
    stage::Stage,
    stall::Stall,
};
use meshd_config::{Delivery, Transport};
use meshd_types::Timestamp;
use std::time::Duration;

/// Maximum time between retries of a waiting machine; without a retry it is off. The longest retry
/// delay of a refusal is 5 minutes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Factor of timeouts with TFTP. Many firmwares use TFTP in lock step: a kernel takes minutes
/// instead of seconds by HTTP.
const TFTP_FACTOR: u32 = 2;

/// The order of stages for one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Transport of kernel and initrds.
    pub transport: Transport,
    /// Delivery of the overlay: by URL, Linux fetches it instead of iPXE.
    pub delivery: Delivery,
    /// True if meshd leases the address. Otherwise meshd does not receive the DHCP exchange of
    /// Linux.
    pub leases: bool,
    /// Stages that no boot of the machine's kind of image reaches.
    pub skipped: &'static [Stage],
}

impl Chain {
    /// Returns the position of a stage.
    fn position(self, stage: Stage) -> usize {
        match (self.delivery, stage) {
            (Delivery::Url, Stage::Overlay) => Stage::OsDhcp as usize,
            (Delivery::Url, Stage::OsDhcp) => Stage::Overlay as usize,
            _ => stage as usize,
        }
    }

    /// Returns the next stage and its timeout.
    fn next(self, after: Stage) -> Option<(Stage, Duration)> {
        let mut position = self.position(after);
        let mut bound = Duration::ZERO;
        loop {
            position += 1;
            let next = Stage::ALL.into_iter().find(|stage| self.position(*stage) == position)?;
            if self.skipped.contains(&next) {
                continue;
            }
            bound += self.bound(next);
            if next != Stage::OsDhcp || self.leases {
                return Some((next, bound));
            }
        }
    }

    /// Returns the timeout of a stage.
    fn bound(self, stage: Stage) -> Duration {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        match stage {
            Stage::Dhcp => Duration::ZERO,
            // Emulated UEFI firmware tries other boot options for a minute each.
            Stage::Loader | Stage::IpxeDhcp | Stage::Script => minutes(3),
            Stage::Kernel | Stage::Initramfs | Stage::Packages => match self.transport {
                Transport::Http => minutes(5),
                Transport::Tftp => minutes(5) * TFTP_FACTOR,
            },
            Stage::Overlay => minutes(5),
            // Server hardware initialises for minutes; emulated OpenRC takes one minute.
            Stage::OsDhcp | Stage::Modloop | Stage::Root | Stage::Enrolled => minutes(10),
            Stage::Link => minutes(3),
            Stage::Online => minutes(5),
        }
    }
}

/// Detects a stall. Time before `watched_since` does not count, because the central node was down
/// and recorded no stages.
pub fn stall(
    session: &BootSession,
    chain: Chain,
    watched_since: Timestamp,
    now: Timestamp,
) -> Option<Stall> {
    // The node runs its former boot.
    if session.is_staged() {
        return None;
    }
    let last = session.stages.iter().max_by_key(|mark| chain.position(mark.stage))?;
    let (missing, mut bound) = chain.next(last.stage)?;
    let waiting = session.waiting();
    if waiting.is_some_and(|wait| wait.code == Wait::APPROVAL) {
        return None;
    }
    let last_wait = session.waits.iter().map(|wait| wait.last).max();
    let since = last_wait.map_or(last.at, |wait| wait.max(last.at));
    if waiting.is_some() {
        bound = bound.max(WAIT_TIMEOUT);
    }
    // After the clock went back far, the time since the last stage is unknown.
    let begun = if since > now.after(bound) { watched_since } else { since.max(watched_since) };
    if now.since(begun) <= bound {
        return None;
    }
    let cause = match waiting {
        Some(wait) => format!(
            "it was deferred ({}) and sent no further request: it is switched off or has no network. The timeline shows the refusal",
            wait.code
        ),
        None => cause(missing, last.count, chain),
    };
    Some(Stall { after: last.stage, missing, since, cause, ended: None })
}

/// Returns the likely cause as a hint for the operator.
fn cause(missing: Stage, tries: u32, chain: Chain) -> String {
    let again = |what: &str| {
        if tries > 1 { format!("asked {tries} times; {what}") } else { what.to_owned() }
    };
    let bulk = match chain.transport {
        Transport::Http => "does HTTP from the node reach [http].port?",
        Transport::Tftp => {
            "does UDP from the node to ports above 1023 pass? TFTP answers from such a one"
        }
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
        Stage::Root => "Linux runs and did not fetch its root: stage 1 has no driver for the NIC, too little memory for \
             the root, or no connection to [http].port. Its console says which. A tethered root, or a server of \
             [boot].root_servers, hides this stage: then the agent did not report"
            .to_owned(),
        Stage::Enrolled => "the system runs and its agent did not report: is [agent].port blocked, is mesh-agent failing \
             (`rc-service mesh-agent status` or `systemctl status mesh-agent` on the node), or is its clock wrong by years?"
            .to_owned(),
        Stage::Link => "the agent has its certificate and opened no link: is the connection cut by a firewall, or does the \
             agent restart? `meshd node logs` has what it wrote"
            .to_owned(),
        Stage::Online => "the node is linked and its readiness checks do not pass; `meshd node show` names them".to_owned(),
    }
}

#[cfg(test)]
#[path = "stall_detection_tests.rs"]
mod tests;
