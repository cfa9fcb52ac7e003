//! The boot queue: limits how many machines load at once. Approved machines come first, then unknown ones, each in order of arrival.
//!
//! ```text
//!            ask: room, and nobody before it      finished, or silent for PATIENCE
//!   (nobody) ─────────────────────────────▶ loading ─────────────────────────────▶ (gone)
//!      │                                      ▲
//!      └── ask: no room ──▶ waiting ──────────┘ ask again, when its place is within the room that there is
//!                             │
//!                             └── not heard of for longer than it was told to wait, plus GRACE ──▶ (gone)
//! ```
//! Anybody can invent unknown machines. So they get one part in [`UNKNOWN_SHARE`] of the places, and keep a place no longer than
//! [`UNKNOWN_TIME`], whatever they fetch. An approved machine keeps one for at most [`APPROVED_TIME`]. Asking for a script is no
//! progress: only a part that was fetched whole is.
//!
//! A machine waits inside iPXE, in a script that says how long and which place it has, so no firmware ever runs into a time
//! limit. It has one place, by its boot NIC: power-cycled, it goes on where it stood. A boot that has begun never waits again.
//!
//! How long to wait is measured: the boots before this one, in portions of what may load at once, at the mean time that loading
//! took lately. Pure: time is an argument, any clock that never goes back.

use meshd_types::{MacAddr, fail};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// A boot that loads and was not heard of for so long has vanished. The largest part of an image takes less, at the slowest that
/// the default limit makes a network of 1 Gbit/s.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// One part in so many of the places is for unknown machines; at least one place.
pub const UNKNOWN_SHARE: usize = 4;
/// How long an unknown machine may load.
pub const UNKNOWN_TIME: Duration = Duration::from_secs(300);
/// How long an approved machine may load. Longer than any image takes at the limit's share of a network of 1 Gbit/s.
pub const APPROVED_TIME: Duration = Duration::from_secs(1800);
/// What a waiting machine may be late: iPXE does DHCP again before it asks, which takes a second, or ten on a bad network.
pub const GRACE: Duration = Duration::from_secs(30);
/// The shortest and the longest wait that a machine is told. A long one leaves room unused when those before it vanish.
pub const WAIT_SECONDS: std::ops::RangeInclusive<u32> = 1..=30;
/// Machines that have a place in line; those beyond it are told to come again and have none.
pub const MAX_WAITING: usize = 65_536;
/// What loading is taken to last before any boot was seen to finish.
const FIRST_GUESS: Duration = Duration::from_secs(10);
/// Finished boots that count in the mean time of loading: each new one weighs one part in so many.
const MEMORY: u32 = 16;
/// Time between two looks for those that vanished.
const SWEEP: Duration = Duration::from_secs(1);

/// The answer to a machine that wants to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAnswer {
    /// It may load now.
    Admitted,
    /// It asks again later.
    Wait {
        /// When to ask again.
        seconds: u32,
        /// How many it has to wait for, itself included: 1 is next.
        place: usize,
    },
}

/// What is known of a machine that wants to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineState {
    /// An operator or a rule of the site let it in.
    Approved,
    /// Nobody approved it.
    Unknown,
}

/// Everybody who loads, and everybody who waits.
#[derive(Debug)]
pub struct BootQueue {
    limit: usize,
    loading: HashMap<MacAddr, Loading>,
    approved: Queue,
    unknown: Queue,
    mean: Duration,
    swept_at: Duration,
}

/// Those of one standing who wait.
#[derive(Debug, Default)]
struct Queue {
    /// Tickets in the order of arrival.
    waiting: BTreeMap<u64, QueuedMachine>,
    tickets: HashMap<MacAddr, u64>,
    last_ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Loading {
    standing: MachineState,
    since: Duration,
    heard: Duration,
}

#[derive(Clone, Copy, Debug)]
struct QueuedMachine {
    mac: MacAddr,
    /// When it counts as vanished.
    until: Duration,
}

impl Queue {
    /// The place of a machine: 1 is next. One that is not here yet would be the last.
    fn place(&self, mac: MacAddr) -> usize {
        self.known_place(mac).unwrap_or(self.waiting.len() + 1)
    }

    fn known_place(&self, mac: MacAddr) -> Option<usize> {
        self.tickets.get(&mac).map(|ticket| self.waiting.range(..=ticket).count())
    }

    fn keep(&mut self, mac: MacAddr, until: Duration) {
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
    /// False once its place is somebody else's.
    fn keeps_its_place(&self, now: Duration) -> bool {
        let most = match self.standing {
            MachineState::Approved => APPROVED_TIME,
            MachineState::Unknown => UNKNOWN_TIME,
        };
        let in_time = now.saturating_sub(self.since) <= most || !fail::defends("boot-queue-time");
        in_time && now.saturating_sub(self.heard) <= PATIENCE
    }
}

impl BootQueue {
    /// An empty line with room for `limit` boots that load at once, at least one.
    pub fn new(limit: usize) -> Self {
        BootQueue {
            limit: limit.max(1),
            loading: HashMap::new(),
            approved: Queue::default(),
            unknown: Queue::default(),
            mean: FIRST_GUESS,
            swept_at: Duration::ZERO,
        }
    }

    /// A machine wants to load.
    pub fn ask(&mut self, now: Duration, mac: MacAddr, standing: MachineState) -> QueueAnswer {
        let standing = if fail::defends("boot-queue-share") { standing } else { MachineState::Approved };
        if let Some(loading) = self.loading.get_mut(&mac) {
            // One that was approved meanwhile takes no place of the unknown any more.
            loading.standing = loading.standing.min(standing);
            if standing == MachineState::Approved || !fail::defends("boot-queue-time") {
                loading.heard = now;
            }
            if loading.keeps_its_place(now) {
                return QueueAnswer::Admitted;
            }
            self.loading.remove(&mac);
        }
        self.sweep(now);
        if standing == MachineState::Approved {
            self.unknown.forget(mac);
        }
        let free = self.limit.saturating_sub(self.loading.len());
        let (place, free) = match standing {
            MachineState::Approved => (self.approved.place(mac), free),
            MachineState::Unknown => {
                let unknown = self.loading.values().filter(|one| one.standing == MachineState::Unknown).count();
                let share = (self.limit / UNKNOWN_SHARE).max(1).saturating_sub(unknown);
                let before = self.approved.waiting.len();
                (self.unknown.place(mac) + before, free.min(share + before))
            }
        };
        if place <= free {
            self.forget_place(mac);
            self.loading.insert(mac, Loading { standing, since: now, heard: now });
            return QueueAnswer::Admitted;
        }
        let seconds = self.seconds_until(place);
        let until = now + Duration::from_secs(seconds.into()) + GRACE;
        match standing {
            MachineState::Approved => self.approved.keep(mac, until),
            MachineState::Unknown => self.unknown.keep(mac, until),
        }
        QueueAnswer::Wait { seconds, place }
    }

    /// A machine that loads fetched a part to its last byte.
    pub fn progressed(&mut self, now: Duration, mac: MacAddr) {
        if let Some(loading) = self.loading.get_mut(&mac) {
            loading.heard = now;
        }
    }

    /// A machine has loaded everything.
    pub fn finished(&mut self, now: Duration, mac: MacAddr) {
        if let Some(loading) = self.loading.remove(&mac) {
            let took = now.saturating_sub(loading.since);
            self.mean = (self.mean * (MEMORY - 1) + took) / MEMORY;
        }
    }

    /// A machine does not load after all, such as one that is refused.
    pub fn leave(&mut self, mac: MacAddr) {
        self.loading.remove(&mac);
        self.forget_place(mac);
    }

    /// Returns the number of machines that load.
    pub fn loading(&self) -> usize {
        self.loading.len()
    }

    /// Returns the number of machines that wait.
    pub fn waiting(&self) -> usize {
        self.approved.waiting.len() + self.unknown.waiting.len()
    }

    /// The place of a machine that waits.
    #[cfg(test)]
    fn place(&self, mac: MacAddr) -> Option<usize> {
        let unknown = || Some(self.unknown.known_place(mac)? + self.approved.waiting.len());
        self.approved.known_place(mac).or_else(unknown)
    }

    fn seconds_until(&self, place: usize) -> u32 {
        let millis = self.mean.as_millis() * place as u128 / self.limit as u128;
        let seconds = u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX);
        seconds.clamp(*WAIT_SECONDS.start(), *WAIT_SECONDS.end())
    }

    fn forget_place(&mut self, mac: MacAddr) {
        self.approved.forget(mac);
        self.unknown.forget(mac);
    }

    /// Gives up those that vanished or took too long.
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        self.loading.retain(|_, loading| loading.keeps_its_place(now));
        self.approved.sweep(now);
        self.unknown.sweep(now);
    }
}

#[cfg(test)]
#[path = "boot_queue_tests.rs"]
mod tests;
