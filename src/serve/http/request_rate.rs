//! Rate limit of requests that the central node decides: scripts, overlays and reports. Each costs far more than a blob, which is only
//! sent.

use std::{
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// Requests per second of one address. A whole rack behind one address (a relay that translates addresses, a lab) stays below it.
pub const MAX_PER_SECOND: u16 = 1000;
/// Slots of the table. When two addresses share a slot, the later one takes it.
const SLOTS: usize = 1024;

/// The last address of a slot, with its requests in the current second.
#[derive(Clone, Copy)]
struct Slot {
    address: Ipv4Addr,
    second: u64,
    count: u16,
}

/// Counts requests of each address.
pub struct RequestRate {
    per_second: u16,
    begin: Instant,
    slots: Mutex<Vec<Slot>>,
}

impl RequestRate {
    /// Creates a table that allows this many requests per second of each address.
    pub fn new(per_second: u16) -> Self {
        let empty = Slot { address: Ipv4Addr::UNSPECIFIED, second: 0, count: 0 };
        RequestRate { per_second, begin: Instant::now(), slots: Mutex::new(vec![empty; SLOTS]) }
    }

    /// Counts a request. Returns true if it is within the rate.
    pub fn allow(&self, address: Ipv4Addr) -> bool {
        self.allow_in(self.begin.elapsed().as_secs(), address)
    }

    fn allow_in(&self, second: u64, address: Ipv4Addr) -> bool {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // The low bits differ within a network.
        let index = u32::from(address) as usize % SLOTS;
        let Some(slot) = slots.get_mut(index) else { return true };
        if slot.address != address || slot.second != second {
            *slot = Slot { address, second, count: 0 };
        }
        slot.count = slot.count.saturating_add(1);
        slot.count <= self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_rate_is_limited_per_address_and_second() {
        let rate = RequestRate::new(MAX_PER_SECOND);
        let (loud, quiet) = (Ipv4Addr::new(10, 77, 0, 5), Ipv4Addr::new(10, 77, 0, 6));
        let allowed = (0..5000).filter(|_| rate.allow_in(7, loud)).count();
        assert_eq!(allowed, usize::from(MAX_PER_SECOND));
        assert!(rate.allow_in(7, quiet), "another machine is served");
        assert!(rate.allow_in(8, loud), "the next second is a new one");
    }
}
