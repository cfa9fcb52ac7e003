//! Which clients have begun an exchange with a DISCOVER, where another server leases the addresses. An address that a client takes
//! without one is not trusted to be a new one of the same machine.

use meshd_types::{MacAddr, Timestamp};
use std::{collections::HashMap, time::Duration};

/// How long an exchange takes at most: clients give up sooner.
const LONGEST: Duration = Duration::from_secs(120);
/// Clients that are remembered; with more, those go first whose exchange is over, then all of them. A rack that powers on has fewer.
const MAX_CLIENTS: usize = 16_384;

/// The last DISCOVER of each client: its transaction ID, and when.
#[derive(Debug, Default)]
pub(super) struct Discoveries(HashMap<MacAddr, (u32, Timestamp)>);

impl Discoveries {
    /// A client sent a DISCOVER.
    pub(super) fn began(&mut self, now: Timestamp, mac: MacAddr, xid: u32) {
        if self.0.len() >= MAX_CLIENTS {
            self.0.retain(|_, (_, at)| now.since(*at) <= LONGEST);
        }
        if self.0.len() >= MAX_CLIENTS {
            self.0.clear();
        }
        self.0.insert(mac, (xid, now));
    }

    /// True if a REQUEST with this transaction ID belongs to the client's last DISCOVER.
    pub(super) fn took(&self, now: Timestamp, mac: MacAddr, xid: u32) -> bool {
        self.0.get(&mac).is_some_and(|(begun, at)| *begun == xid && now.since(*at) <= LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_belongs_to_the_last_discover_of_its_client() {
        let (now, mac) = (Timestamp::from_millis(0), MacAddr([2, 0, 0, 0, 0, 1]));
        let mut discoveries = Discoveries::default();
        assert!(!discoveries.took(now, mac, 1));
        discoveries.began(now, mac, 1);
        discoveries.began(now, mac, 2);
        assert!(!discoveries.took(now, mac, 1) && discoveries.took(now, mac, 2));
        assert!(!discoveries.took(now.after(LONGEST * 2), mac, 2), "that was long ago");
    }

    #[test]
    fn flood_of_clients_is_bounded() {
        let mut discoveries = Discoveries::default();
        for n in 0..40_000u32 {
            let [_, a, b, c] = n.to_be_bytes();
            discoveries.began(Timestamp::from_millis(0), MacAddr([2, 0, 0, a, b, c]), n);
        }
        assert!(discoveries.0.len() <= MAX_CLIENTS);
    }
}
