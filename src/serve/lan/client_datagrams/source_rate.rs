//! Limits the requests of each Ethernet source. Pure.

use meshd_types::{MacAddr, failpoint};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Maximum number of requests of a NIC, and of a router, in [`INTERVAL`]. Firmware sends fewer than
/// ten for a boot.
const MAX_OF_NIC: u32 = 1000;
const MAX_OF_ROUTER: u32 = 8000;
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of sources that are counted one by one. Further ones share a count.
const MAX_SOURCES: usize = 4096;

/// Counts requests. Those above a limit are dropped: a client repeats its request.
pub(super) struct SourceRate {
    since: Instant,
    counts: HashMap<MacAddr, u32>,
    others: u32,
}

/// The number of requests of a source in the current interval.
pub(super) struct RequestCount(u32);

impl SourceRate {
    pub(super) fn new(now: Instant) -> Self {
        SourceRate { since: now, counts: HashMap::new(), others: 0 }
    }

    /// Counts a request. Returns `None` if it is too many from any source.
    pub(super) fn count(&mut self, now: Instant, source: MacAddr) -> Option<RequestCount> {
        if now.saturating_duration_since(self.since) >= INTERVAL {
            *self = SourceRate::new(now);
        }
        let has_room = self.counts.len() < MAX_SOURCES || self.counts.contains_key(&source);
        let count =
            if has_room { self.counts.entry(source).or_default() } else { &mut self.others };
        *count = count.saturating_add(1);
        let is_within = *count <= MAX_OF_ROUTER || !failpoint::defends("tftp-request-rate");
        is_within.then_some(RequestCount(*count))
    }
}

impl RequestCount {
    /// Returns true if the request is within the limit of its source.
    pub(super) fn is_within(&self, is_router: bool) -> bool {
        let limit = if is_router { MAX_OF_ROUTER } else { MAX_OF_NIC };
        self.0 <= limit || !failpoint::defends("tftp-request-rate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of admitted requests of `count`.
    fn admitted(rate: &mut SourceRate, now: Instant, mac: MacAddr, is_router: bool) -> usize {
        let request = || rate.count(now, mac).is_some_and(|count| count.is_within(is_router));
        std::iter::repeat_with(request).take(10_000).filter(|admitted| *admitted).count()
    }

    #[test]
    fn tftp_request_flood_of_a_nic_is_limited_and_others_are_not() {
        let now = Instant::now();
        let mut rate = SourceRate::new(now);
        let nic = MacAddr([2, 0, 0, 0, 0, 1]);
        let router = MacAddr([2, 0, 0, 0, 0, 2]);
        assert_eq!(admitted(&mut rate, now, nic, false), 1000);
        assert_eq!(admitted(&mut rate, now, router, true), 8000);
        let next = now + INTERVAL;
        assert_eq!(admitted(&mut rate, next, nic, false), 1000, "the next second");
    }

    #[test]
    fn invented_ethernet_sources_are_bounded_and_share_a_limit() {
        let now = Instant::now();
        let mut rate = SourceRate::new(now);
        let admitted = (0..20_000u16)
            .map(|number| number.to_be_bytes())
            .filter_map(|[high, low]| rate.count(now, MacAddr([2, 0, 0, 0, high, low])))
            .filter(|count| count.is_within(false))
            .count();
        assert_eq!(admitted, MAX_SOURCES + 1000);
        assert_eq!(rate.counts.len(), MAX_SOURCES);
    }
}
