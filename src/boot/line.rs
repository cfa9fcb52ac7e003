//! Storm control: when more machines come than can be loaded at once, they stand in line, first come, first served.
//!
//! ```text
//!            ask: room, and nobody before it      finished, or silent for PATIENCE
//!   (nobody) ─────────────────────────────▶ loading ─────────────────────────────▶ (gone)
//!      │                                      ▲
//!      └── ask: no room ──▶ waiting ──────────┘ ask again, when its place is within the room that there is
//!                             │
//!                             └── not heard of for longer than it was told to wait, plus GRACE ──▶ (gone)
//! ```
//! A machine waits inside iPXE, in a script that says how long and which place it has, so no firmware ever runs into a time
//! limit. It has one place, by its boot NIC: power-cycled, it goes on where it stood. A boot that has begun never waits again.
//!
//! How long to wait is measured: the boots before this one, in portions of what may load at once, at the mean time that loading
//! took lately. Pure: time is an argument, any clock that never goes back.

use crate::id::MacAddr;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// A boot that loads and was not heard of for so long has vanished. The largest part of an image takes less, at the slowest that
/// the default limit makes a network of 1 Gbit/s.
pub const PATIENCE: Duration = Duration::from_secs(180);
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
pub enum Turn {
    /// Now.
    Admitted,
    /// Later.
    Wait {
        /// When to ask again.
        seconds: u32,
        /// How many it has to wait for, itself included: 1 is next.
        place: usize,
    },
}

/// Everybody who loads, and everybody who waits.
#[derive(Debug)]
pub struct Line {
    limit: usize,
    loading: HashMap<MacAddr, Loading>,
    /// Tickets in the order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    tickets: HashMap<MacAddr, u64>,
    last_ticket: u64,
    mean: Duration,
    swept_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Loading {
    since: Duration,
    heard: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    mac: MacAddr,
    /// When it counts as vanished.
    until: Duration,
}

impl Line {
    /// An empty line with room for `limit` boots that load at once, at least one.
    pub fn new(limit: usize) -> Self {
        Line {
            limit: limit.max(1),
            loading: HashMap::new(),
            waiting: BTreeMap::new(),
            tickets: HashMap::new(),
            last_ticket: 0,
            mean: FIRST_GUESS,
            swept_at: Duration::ZERO,
        }
    }

    /// A machine wants to load.
    pub fn ask(&mut self, now: Duration, mac: MacAddr) -> Turn {
        if let Some(loading) = self.loading.get_mut(&mac) {
            loading.heard = now;
            return Turn::Admitted;
        }
        self.sweep(now);
        let place = match self.tickets.get(&mac) {
            Some(ticket) => self.waiting.range(..=ticket).count(),
            None => self.waiting.len() + 1,
        };
        if place <= self.limit.saturating_sub(self.loading.len()) {
            self.forget_place(mac);
            self.loading.insert(mac, Loading { since: now, heard: now });
            return Turn::Admitted;
        }
        let seconds = self.seconds_until(place);
        self.keep_place(mac, now + Duration::from_secs(seconds.into()) + GRACE);
        Turn::Wait { seconds, place }
    }

    /// A machine that loads was heard of: it fetched something.
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

    /// How many load.
    pub fn loading(&self) -> usize {
        self.loading.len()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The place of a machine that waits.
    pub fn place(&self, mac: MacAddr) -> Option<usize> {
        self.tickets.get(&mac).map(|ticket| self.waiting.range(..=ticket).count())
    }

    fn seconds_until(&self, place: usize) -> u32 {
        let millis = self.mean.as_millis() * place as u128 / self.limit as u128;
        let seconds = u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX);
        seconds.clamp(*WAIT_SECONDS.start(), *WAIT_SECONDS.end())
    }

    fn keep_place(&mut self, mac: MacAddr, until: Duration) {
        let known = self.tickets.get(&mac).copied();
        if known.is_none() && self.waiting.len() >= MAX_WAITING {
            return;
        }
        let ticket = known.unwrap_or_else(|| {
            self.last_ticket += 1;
            self.tickets.insert(mac, self.last_ticket);
            self.last_ticket
        });
        self.waiting.insert(ticket, Waiting { mac, until });
    }

    fn forget_place(&mut self, mac: MacAddr) {
        if let Some(ticket) = self.tickets.remove(&mac) {
            self.waiting.remove(&ticket);
        }
    }

    /// Gives up those that vanished.
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        self.loading.retain(|_, loading| now.saturating_sub(loading.heard) <= PATIENCE);
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

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
