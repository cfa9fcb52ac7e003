//! The boot queue: limits how many machines load at once. Approved machines come first, then
//! unknown ones, each in order of arrival.
//!
//! ```text
//!         request: free capacity, none before     finished, or silent for PROGRESS_TIMEOUT
//!   (new) ────────────────────────────────▶ loading ──────────────────────────────────────▶ (removed)
//!     │                                       ▲
//!     └── request: no capacity ──▶ waiting ───┘ retry, when its position is within the free capacity
//!                                     │
//!                                     └── no retry within its delay plus GRACE ──▶ (removed)
//! ```
//! An attacker can simulate unknown machines. All unknown machines together receive at most
//! 1/[`UNKNOWN_SHARE`] of the capacity, each for at most [`UNKNOWN_TIME`]. An approved machine
//! loads for at most [`APPROVED_TIME`]. A completely fetched part counts as progress; a request for
//! a script does not.
//!
//! A machine waits in an iPXE script that shows delay and position, so no firmware timeout applies.
//! The queue is keyed by the MAC address of the boot NIC, so a power cycle keeps the position. A
//! boot that has begun does not wait again.
//!
//! The delay follows from the position, the limit, and the mean loading time of recent boots. Pure:
//! time is an argument of a monotonic clock.

use meshd_types::{MacAddr, failpoint};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// Maximum time without progress of a loading boot. The largest part of an image loads faster, even
/// at a boot's share of 1 Gbit/s under the default limit.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(180);
/// Divisor of the limit for unknown machines; at least one may load.
pub const UNKNOWN_SHARE: usize = 4;
/// Maximum loading time of an unknown machine.
pub const UNKNOWN_TIME: Duration = Duration::from_secs(300);
/// Maximum loading time of an approved machine: longer than any image takes at its share of 1
/// Gbit/s.
pub const APPROVED_TIME: Duration = Duration::from_secs(1800);
/// Permitted delay of a retry. iPXE repeats DHCP before a retry, which takes a second, or ten on a
/// bad network.
pub const GRACE: Duration = Duration::from_secs(30);
/// Bounds of the retry delay in seconds. A longer delay would leave capacity unused when waiting
/// machines disappear.
pub const WAIT_SECONDS: std::ops::RangeInclusive<u32> = 1..=30;
/// Maximum number of queued machines; further ones must retry without a position.
pub const MAX_WAITING: usize = 65_536;
/// Assumed loading time before the first boot has finished.
const INITIAL_MEAN: Duration = Duration::from_secs(10);
/// Weight of a new sample in the mean loading time: one part in this number.
const MEAN_WINDOW: u32 = 16;
/// Time between two removals of expired entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The answer to a request to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAnswer {
    /// The machine may load now.
    Admitted,
    /// The machine retries after `seconds`. Position 1 is next.
    Wait { seconds: u32, position: usize },
}

/// The approval of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admission {
    Approved,
    Unknown,
}

/// Loading and waiting machines.
#[derive(Debug)]
pub struct BootQueue {
    limit: usize,
    loading: HashMap<MacAddr, Loading>,
    approved: Queue,
    unknown: Queue,
    mean: Duration,
    swept_at: Duration,
}

/// Waiting machines of one state.
#[derive(Debug, Default)]
struct Queue {
    /// Tickets in the order of arrival.
    waiting: BTreeMap<u64, QueuedMachine>,
    tickets: HashMap<MacAddr, u64>,
    last_ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Loading {
    state: Admission,
    since: Duration,
    last_progress: Duration,
}

#[derive(Clone, Copy, Debug)]
struct QueuedMachine {
    mac: MacAddr,
    /// Expiry of the entry.
    until: Duration,
}

impl Queue {
    /// Returns the position of a machine; a new machine would be the last.
    fn position(&self, mac: MacAddr) -> usize {
        self.known_position(mac).unwrap_or(self.waiting.len() + 1)
    }

    fn known_position(&self, mac: MacAddr) -> Option<usize> {
        self.tickets.get(&mac).map(|ticket| self.waiting.range(..=ticket).count())
    }

    fn enqueue(&mut self, mac: MacAddr, until: Duration) {
        let known = self.tickets.get(&mac).copied();
        if known.is_none() && self.waiting.len() >= MAX_WAITING {
            return;
        }
        let ticket = known.unwrap_or_else(|| {
            self.last_ticket += 1;
            self.tickets.insert(mac, self.last_ticket);
            self.last_ticket
        });
        self.waiting.insert(ticket, QueuedMachine { mac, until });
    }

    fn forget(&mut self, mac: MacAddr) {
        if let Some(ticket) = self.tickets.remove(&mac) {
            self.waiting.remove(&ticket);
        }
    }

    fn sweep(&mut self, now: Duration) {
        let tickets = &mut self.tickets;
        self.waiting.retain(|_, waiting| {
            let stays = now <= waiting.until;
            if !stays {
                tickets.remove(&waiting.mac);
            }
            stays
        });
    }
}

impl Loading {
    /// Returns whether the entry is still valid.
    fn is_valid(&self, now: Duration) -> bool {
        let limit = match self.state {
            Admission::Approved => APPROVED_TIME,
            Admission::Unknown => UNKNOWN_TIME,
        };
        let in_time =
            now.saturating_sub(self.since) <= limit || !failpoint::defends("boot-queue-time");
        in_time && now.saturating_sub(self.last_progress) <= PROGRESS_TIMEOUT
    }
}

impl BootQueue {
    /// Creates an empty queue. A `limit` of 0 counts as 1.
    pub fn new(limit: usize) -> Self {
        BootQueue {
            limit: limit.max(1),
            loading: HashMap::new(),
            approved: Queue::default(),
            unknown: Queue::default(),
            mean: INITIAL_MEAN,
            swept_at: Duration::ZERO,
        }
    }

    /// Processes a request to load.
    pub fn request(&mut self, now: Duration, mac: MacAddr, state: Admission) -> QueueAnswer {
        let state =
            if failpoint::defends("boot-queue-share") { state } else { Admission::Approved };
        if let Some(loading) = self.loading.get_mut(&mac) {
            // The machine may have been approved since its last request.
            loading.state = loading.state.min(state);
            if state == Admission::Approved || !failpoint::defends("boot-queue-time") {
                loading.last_progress = now;
            }
            if loading.is_valid(now) {
                return QueueAnswer::Admitted;
            }
            self.loading.remove(&mac);
        }
        self.sweep(now);
        if state == Admission::Approved {
            self.unknown.forget(mac);
        }
        let free = self.limit.saturating_sub(self.loading.len());
        let (position, free) = match state {
            Admission::Approved => (self.approved.position(mac), free),
            Admission::Unknown => {
                let unknown = self
                    .loading
                    .values()
                    .filter(|loading| loading.state == Admission::Unknown)
                    .count();
                let share = (self.limit / UNKNOWN_SHARE).max(1).saturating_sub(unknown);
                let before = self.approved.waiting.len();
                (self.unknown.position(mac) + before, free.min(share + before))
            }
        };
        if position <= free {
            self.forget_waiting(mac);
            self.loading.insert(mac, Loading { state, since: now, last_progress: now });
            return QueueAnswer::Admitted;
        }
        let seconds = self.seconds_until(position);
        let until = now + Duration::from_secs(seconds.into()) + GRACE;
        match state {
            Admission::Approved => self.approved.enqueue(mac, until),
            Admission::Unknown => self.unknown.enqueue(mac, until),
        }
        QueueAnswer::Wait { seconds, position }
    }

    /// Records that a loading machine fetched a part completely.
    pub fn record_progress(&mut self, now: Duration, mac: MacAddr) {
        if let Some(loading) = self.loading.get_mut(&mac) {
            loading.last_progress = now;
        }
    }

    /// Records that a machine has loaded everything.
    pub fn finish(&mut self, now: Duration, mac: MacAddr) {
        if let Some(loading) = self.loading.remove(&mac) {
            let took = now.saturating_sub(loading.since);
            self.mean = (self.mean * (MEAN_WINDOW - 1) + took) / MEAN_WINDOW;
        }
    }

    /// Removes a machine, for example after a refusal.
    pub fn remove(&mut self, mac: MacAddr) {
        self.loading.remove(&mac);
        self.forget_waiting(mac);
    }

    /// Returns the number of machines that load.
    pub fn loading(&self) -> usize {
        self.loading.len()
    }

    /// Returns the number of machines that wait.
    pub fn waiting(&self) -> usize {
        self.approved.waiting.len() + self.unknown.waiting.len()
    }

    /// Returns the position of a waiting machine.
    #[cfg(test)]
    fn position(&self, mac: MacAddr) -> Option<usize> {
        let unknown = || Some(self.unknown.known_position(mac)? + self.approved.waiting.len());
        self.approved.known_position(mac).or_else(unknown)
    }

    fn seconds_until(&self, position: usize) -> u32 {
        let millis = self.mean.as_millis() * position as u128 / self.limit as u128;
        let seconds = u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX);
        seconds.clamp(*WAIT_SECONDS.start(), *WAIT_SECONDS.end())
    }

    fn forget_waiting(&mut self, mac: MacAddr) {
        self.approved.forget(mac);
        self.unknown.forget(mac);
    }

    /// Removes expired entries.
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        self.loading.retain(|_, loading| loading.is_valid(now));
        self.approved.sweep(now);
        self.unknown.sweep(now);
    }
}

#[cfg(test)]
#[path = "boot_queue_tests.rs"]
mod tests;
