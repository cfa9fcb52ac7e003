//! Rate limit of requests that the central node decides: scripts, overlays and reports. Each costs
//! far more than a blob, which is only sent.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// Requests per second of one address. A whole rack behind one address (a relay that translates
/// addresses, a lab) stays below it.
pub const MAX_PER_SECOND: u16 = 1000;
/// Maximum number of addresses that are counted in one second. All further ones share one count.
const MAX_ADDRESSES: usize = 16 * 1024;

/// The requests of each address in one second.
#[derive(Default)]
struct RequestCounts {
    second: u64,
    requests: BTreeMap<Ipv4Addr, u16>,
}

/// Counts requests of each address.
pub struct RequestRate {
    per_second: u16,
    begin: Instant,
    counts: Mutex<RequestCounts>,
}

impl RequestRate {
    /// Creates a table that allows this many requests per second of each address.
    pub fn new(per_second: u16) -> Self {
        RequestRate { per_second, begin: Instant::now(), counts: Mutex::default() }
    }

    /// Counts a request. Returns true if it is within the rate.
    pub fn allow(&self, address: Ipv4Addr) -> bool {
        self.allow_in(self.begin.elapsed().as_secs(), address)
    }

    fn allow_in(&self, second: u64, address: Ipv4Addr) -> bool {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // A request that read the clock earlier does not reset the counts.
        if second > counts.second {
            *counts = RequestCounts { second, ..RequestCounts::default() };
        }
        let is_counted =
            counts.requests.len() < MAX_ADDRESSES || counts.requests.contains_key(&address);
        let count = counts
            .requests
            .entry(if is_counted { address } else { Ipv4Addr::UNSPECIFIED })
            .or_default();
        *count = count.saturating_add(1);
        *count <= self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_rate_is_limited_per_address_and_second() {
        let rate = RequestRate::new(MAX_PER_SECOND);
        let loud = Ipv4Addr::new(10, 77, 0, 5);
        let quiet = Ipv4Addr::new(10, 77, 0, 6);
        let allowed = (0..5000).filter(|_| rate.allow_in(7, loud)).count();
        assert_eq!(allowed, usize::from(MAX_PER_SECOND));
        assert!(rate.allow_in(7, quiet), "another machine is served");
        assert!(rate.allow_in(8, loud), "the next second is a new one");
    }
    #[test]
    fn alternating_addresses_do_not_reset_each_others_count() {
        let rate = RequestRate::new(MAX_PER_SECOND);
        let pair = [Ipv4Addr::new(10, 77, 0, 5), Ipv4Addr::new(10, 77, 4, 5)];
        let allowed =
            (0..5000).flat_map(|_| pair).filter(|address| rate.allow_in(7, *address)).count();
        assert_eq!(allowed, 2 * usize::from(MAX_PER_SECOND));
    }

    #[test]
    fn table_of_addresses_is_bounded() {
        let rate = RequestRate::new(1);
        let numbered = |number: usize| Ipv4Addr::from(u32::try_from(number).unwrap() + (10 << 24));
        assert!((0..MAX_ADDRESSES).all(|number| rate.allow_in(7, numbered(number))));
        let further = (MAX_ADDRESSES..MAX_ADDRESSES + 50)
            .filter(|number| rate.allow_in(7, numbered(*number)));
        assert_eq!(further.count(), 1, "all further addresses share one count");
        assert!(!rate.allow_in(7, numbered(5)), "the counted ones keep theirs");
        assert_eq!(rate.counts.lock().unwrap().requests.len(), MAX_ADDRESSES + 1);
    }
}
