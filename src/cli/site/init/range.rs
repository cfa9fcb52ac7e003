//! Proposes a range of addresses for leases.

use std::net::Ipv4Addr;

/// Maximum number of proposed addresses. A larger site names its range.
const MOST: u32 = 1000;
/// Minimum number of addresses that are useful for a rack.
const FEWEST: u32 = 4;

/// Returns the first and last address of a range in the middle of a network, without `own`. Returns
/// `None` below [`FEWEST`] addresses.
pub(super) fn propose(own: Ipv4Addr, prefix_len: u8) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let size = 1_u64.checked_shl(32_u32.checked_sub(prefix_len.into())?)?;
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
    let start = u32::from(own) & mask;
    let part =
        |tenths: u64| start.saturating_add(u32::try_from(size * tenths / 10).unwrap_or(u32::MAX));
    // Routers and servers usually have addresses at the ends of a network.
    let first = part(4).max(start.saturating_add(1));
    let last = part(8).saturating_sub(1);
    let own = u32::from(own);
    let (first, last) = match (first..=last).contains(&own) {
        true if own - first > last - own => (first, own - 1),
        true => (own + 1, last),
        false => (first, last),
    };
    let last = last.min(first.saturating_add(MOST - 1));
    (last.checked_sub(first)? + 1 >= FEWEST).then(|| (first.into(), last.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proposed(own: &str, prefix_len: u8) -> Option<String> {
        propose(own.parse().expect("an address"), prefix_len)
            .map(|(first, last)| format!("{first}-{last}"))
    }

    #[test]
    fn proposed_range_is_in_the_middle_of_network() {
        assert_eq!(proposed("10.77.0.1", 24).as_deref(), Some("10.77.0.102-10.77.0.203"));
        assert_eq!(proposed("10.77.0.1", 16).as_deref(), Some("10.77.102.102-10.77.106.77"));
        assert_eq!(proposed("192.168.1.150", 24).as_deref(), Some("192.168.1.151-192.168.1.203"));
    }

    #[test]
    fn network_without_space_gets_no_proposed_range() {
        assert_eq!(proposed("10.0.0.1", 30), None);
        assert_eq!(proposed("10.0.0.1", 32), None);
        assert_eq!(proposed("10.0.0.1", 33), None);
    }

    proptest! {
        #[test]
        fn proposed_range_is_in_network_and_excludes_own_address(own: u32, prefix_len in 0_u8..=32) {
            if let Some((first, last)) = propose(own.into(), prefix_len) {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
                let first = u32::from(first);
                let last = u32::from(last);
                prop_assert!(first & mask == own & mask && last & mask == own & mask);
                prop_assert!(first < last && !(first..=last).contains(&own) && last - first < MOST);
                prop_assert!(first & !mask != 0, "the network's own address");
            }
        }
    }
}
