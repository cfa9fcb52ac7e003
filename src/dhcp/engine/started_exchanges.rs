//! In proxy mode, the clients that sent a DISCOVER to another server. A client that takes a new
//! address without a DISCOVER may be another machine that uses its MAC address.

use meshd_types::{MacAddr, Timestamp};
use std::{collections::HashMap, time::Duration};

/// The longest duration of an exchange; clients give up sooner.
const MAX_DURATION: Duration = Duration::from_secs(120);
/// Most clients. When the table is full, clients with finished exchanges are removed, then all of
/// them.
const MAX_CLIENTS: usize = 16_384;

/// Transaction ID and time of each client's last DISCOVER.
#[derive(Debug, Default)]
pub(crate) struct StartedExchanges(HashMap<MacAddr, (u32, Timestamp)>);

impl StartedExchanges {
    /// Records a DISCOVER.
    pub(crate) fn record(&mut self, now: Timestamp, mac: MacAddr, xid: u32) {
        if self.0.len() >= MAX_CLIENTS {
            self.0.retain(|_, (_, at)| now.distance(*at) <= MAX_DURATION);
        }
        if self.0.len() >= MAX_CLIENTS {
            self.0.clear();
        }
        self.0.insert(mac, (xid, now));
    }

    /// Returns true if a REQUEST with this transaction ID belongs to the client's last DISCOVER.
    pub(crate) fn contains(&self, now: Timestamp, mac: MacAddr, xid: u32) -> bool {
        self.0
            .get(&mac)
            .is_some_and(|(begun, at)| *begun == xid && now.distance(*at) <= MAX_DURATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_matches_only_last_discover_of_its_client() {
        let now = Timestamp::from_millis(1_000_000);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut started_exchanges = StartedExchanges::default();
        assert!(!started_exchanges.contains(now, mac, 1));
        started_exchanges.record(now, mac, 1);
        started_exchanges.record(now, mac, 2);
        assert!(
            !started_exchanges.contains(now, mac, 1) && started_exchanges.contains(now, mac, 2)
        );
        assert!(
            !started_exchanges.contains(now.after(MAX_DURATION * 2), mac, 2),
            "that was long ago"
        );
        assert!(
            !started_exchanges.contains(now.before(MAX_DURATION * 2), mac, 2),
            "the clock went back"
        );
    }

    #[test]
    fn exchange_table_is_bounded_under_flood() {
        let mut started_exchanges = StartedExchanges::default();
        for n in 0..40_000u32 {
            let [_, a, b, c] = n.to_be_bytes();
            started_exchanges.record(Timestamp::from_millis(0), MacAddr([2, 0, 0, a, b, c]), n);
        }
        assert!(started_exchanges.0.len() <= MAX_CLIENTS);
    }
}
