//! Declined addresses: held back, because a client found them in use by another machine.

use meshd_types::Timestamp;
use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

/// Hold of an address after a client found it in use by another machine.
pub const DECLINED_HOLD: Duration = Duration::from_secs(15 * 60);
/// How long after an acknowledgement a client may decline the address. Clients probe an address for
/// 3 to 7 seconds before they use it (RFC 5227).
pub const DECLINE_WINDOW: Duration = Duration::from_secs(30);

/// Addresses that are held back, and the end for each.
pub(crate) struct DeclinedAddresses {
    until: BTreeMap<Ipv4Addr, Timestamp>,
    /// The earliest end of a hold.
    first: Timestamp,
    /// Most addresses that are held back.
    most: usize,
}

/// A time that never comes.
const NEVER: i64 = i64::MAX;

impl DeclinedAddresses {
    /// Creates an empty set for at most this many addresses.
    pub(crate) fn new(most: usize) -> Self {
        DeclinedAddresses { until: BTreeMap::new(), first: Timestamp::from_millis(NEVER), most }
    }

    /// Adds an address. Returns the addresses that leave early for it, so that declines cannot
    /// exhaust a pool.
    pub(crate) fn add(&mut self, address: Ipv4Addr, until: Timestamp) -> Vec<Ipv4Addr> {
        self.until.insert(address, until);
        self.first = self.first.min(until);
        let mut back = Vec::new();
        while self.until.len() > self.most {
            let Some(earliest) =
                self.until.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address)
            else {
                break;
            };
            self.until.remove(&earliest);
            back.push(earliest);
        }
        back
    }

    /// Ends all holds at this time at the latest.
    pub(crate) fn bound(&mut self, latest: Timestamp) {
        self.until.values_mut().for_each(|until| *until = latest.min(*until));
        self.first = self.first.min(latest);
    }

    /// Removes and returns the addresses whose hold is over.
    pub(crate) fn take_expired(&mut self, now: Timestamp) -> Vec<Ipv4Addr> {
        if now < self.first {
            return Vec::new();
        }
        let back: Vec<_> = self
            .until
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(address, _)| *address)
            .collect();
        back.iter().for_each(|address| {
            self.until.remove(address);
        });
        self.first = self.until.values().copied().min().unwrap_or(Timestamp::from_millis(NEVER));
        back
    }

    /// Returns true for an address that is held back.
    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        self.until.contains_key(&address)
    }

    /// Returns the number of addresses that are held back.
    pub(crate) fn len(&self) -> usize {
        self.until.len()
    }
}
