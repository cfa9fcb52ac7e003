//! Addresses that rest, because a client found them in use by somebody else.

use meshd_types::Timestamp;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Each address that rests, and until when.
pub(super) struct Resting {
    until: BTreeMap<Ipv4Addr, Timestamp>,
    /// When the first of them may be used again.
    first: Timestamp,
    /// How many rest at most.
    most: usize,
}

/// Later than anything.
const NEVER: i64 = i64::MAX;

impl Resting {
    /// No address, and at most so many.
    pub(super) fn new(most: usize) -> Self {
        Resting { until: BTreeMap::new(), first: Timestamp::from_millis(NEVER), most }
    }

    /// An address rests from now on. Returns those that may be used again for it: whoever can decline many addresses must not use up a
    /// pool by it.
    pub(super) fn add(&mut self, address: Ipv4Addr, until: Timestamp) -> Vec<Ipv4Addr> {
        self.until.insert(address, until);
        self.first = self.first.min(until);
        let mut back = Vec::new();
        while self.until.len() > self.most {
            let Some(earliest) = self.until.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address) else {
                break;
            };
            self.until.remove(&earliest);
            back.push(earliest);
        }
        back
    }

    /// Returns the addresses that have rested for long enough.
    pub(super) fn over(&mut self, now: Timestamp) -> Vec<Ipv4Addr> {
        if now < self.first {
            return Vec::new();
        }
        let back: Vec<_> = self.until.iter().filter(|(_, until)| **until <= now).map(|(address, _)| *address).collect();
        back.iter().for_each(|address| {
            self.until.remove(address);
        });
        self.first = self.until.values().copied().min().unwrap_or(Timestamp::from_millis(NEVER));
        back
    }

    /// True if an address rests.
    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        self.until.contains_key(&address)
    }

    /// How many addresses rest.
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }
}
