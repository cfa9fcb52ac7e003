//! Machines whose firmware tried to boot by IPv6, until their DHCP exchange.

use crate::boot::BootService;
use meshd_types::{MacAddr, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of machines. A flood of invented addresses displaces no record in use.
const MAX_MACHINES: usize = 4096;
/// Maximum time from the last request by IPv6 to the DHCP exchange of the same power-on.
const WINDOW: Duration = Duration::from_secs(5 * 60);

/// The first and the last request by IPv6 of each machine.
pub(super) type Ipv6Boots = BTreeMap<MacAddr, [Timestamp; 2]>;

impl BootService {
    /// Records that the firmware of a machine tries to boot by IPv6.
    pub fn observe_ipv6_boot(&self, mac: MacAddr) {
        record(&mut self.ipv6_boots.lock(), mac, self.env.now());
    }

    /// Returns the begin of the attempts by IPv6 before a DHCP exchange, and forgets them.
    pub(super) fn take_ipv6_boot(&self, mac: MacAddr, now: Timestamp) -> Option<Timestamp> {
        let [first, last] = self.ipv6_boots.lock().remove(&mac)?;
        (now.distance(last) <= WINDOW).then_some(first)
    }
}

fn record(boots: &mut Ipv6Boots, mac: MacAddr, now: Timestamp) {
    if boots.len() >= MAX_MACHINES && !boots.contains_key(&mac) {
        boots.retain(|_, [_, last]| now.distance(*last) <= WINDOW);
        if boots.len() >= MAX_MACHINES {
            return;
        }
    }
    let [first, last] = boots.entry(mac).or_insert([now, now]);
    if now.distance(*last) > WINDOW {
        *first = now;
    }
    *last = now;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_bounded_and_a_later_attempt_begins_anew() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let mac = |number: usize| MacAddr([2, 0, 0, 0, (number >> 8) as u8, number as u8]);
        let mut boots = Ipv6Boots::new();
        for seconds in [0, 60, 120] {
            record(&mut boots, mac(1), at(seconds));
        }
        assert_eq!(boots[&mac(1)], [at(0), at(120)]);
        record(&mut boots, mac(1), at(1000));
        assert_eq!(boots[&mac(1)], [at(1000), at(1000)]);
        for number in 0..MAX_MACHINES + 9 {
            record(&mut boots, mac(number), at(1001));
        }
        assert_eq!(boots.len(), MAX_MACHINES);
        record(&mut boots, MacAddr([2, 9, 9, 9, 9, 9]), at(9000));
        assert_eq!(boots.len(), 1, "all others are old");
    }
}
