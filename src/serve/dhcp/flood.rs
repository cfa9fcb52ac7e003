//! No card gets more than its share: what it sends beyond a rate is dropped before it is even read.

use crate::id::Timestamp;

/// Packets of one MAC address that are handled in a second. Firmware sends four when it is in a hurry.
pub const MAX_PER_SECOND: u16 = 50;
/// MAC addresses that are counted at once; 16 bytes each. When two share a slot, the later one takes it: who has many MAC
/// addresses is bounded by the pool, not here.
const SLOTS: usize = 16_384;

#[derive(Clone, Copy, Default)]
struct Slot {
    mac: [u8; 6],
    count: u16,
    second: i64,
}

/// How much each card has sent in this second.
pub(super) struct Flood(Vec<Slot>);

impl Default for Flood {
    fn default() -> Self {
        Flood(vec![Slot::default(); SLOTS])
    }
}

impl Flood {
    /// True if this packet is within the rate.
    pub(super) fn allow(&mut self, now: Timestamp, mac: [u8; 6]) -> bool {
        let second = now.seconds();
        let Some(slot) = self.0.get_mut(place(mac)) else { return true };
        if slot.mac != mac || slot.second != second {
            *slot = Slot { mac, count: 0, second };
        }
        slot.count = slot.count.saturating_add(1);
        slot.count <= MAX_PER_SECOND
    }
}

/// FNV-1a.
fn place(mac: [u8; 6]) -> usize {
    let hash = mac.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    usize::try_from(hash).unwrap_or_default() % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_a_rate_of_its_own() {
        let mut flood = Flood::default();
        let at = |millis| Timestamp::from_millis(millis);
        let (loud, quiet) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let passed = (0..1000).filter(|n| flood.allow(at(5_000 + n % 999), loud)).count();
        assert_eq!(passed, usize::from(MAX_PER_SECOND));
        assert!(flood.allow(at(5_999), quiet), "another one is not held up");
        assert!(flood.allow(at(6_000), loud), "and the next second is a new one");
    }
}
