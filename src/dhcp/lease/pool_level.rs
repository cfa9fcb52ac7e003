//! The fill level of a pool, with hysteresis: a level is reported when it is reached, and again
//! only after the pool was well below it.

/// Percent of a pool in use at which a level begins.
const FILLING: u64 = 80;
const NEARLY_FULL: u64 = 95;
/// A level is left only this many percent below its begin.
const HYSTERESIS_PERCENT: u64 = 5;

/// Numbers of addresses of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// All addresses.
    pub size: u32,
    /// Addresses with a lease that has not expired.
    pub leased: u32,
    /// Addresses that were offered within the last minute.
    pub offered: u32,
    /// Addresses that are held back, because a client found them in use.
    pub declined: u32,
}

/// The fill level of a pool. Ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolLevel {
    /// Less than four fifths are in use.
    #[default]
    Room,
    /// Four fifths are in use.
    Filling,
    /// All but a twentieth is in use.
    NearlyFull,
    /// A client got no address.
    Exhausted,
}

impl PoolLevel {
    /// Returns the level after this one. `refused`: a client just got no address.
    pub(crate) fn next(self, usage: PoolUse, refused: bool) -> PoolLevel {
        let used = u64::from(usage.leased) + u64::from(usage.offered) + u64::from(usage.declined);
        let percent = (used * 100).checked_div(u64::from(usage.size)).unwrap_or(0);
        let reached = if refused { PoolLevel::Exhausted } else { PoolLevel::of(percent) };
        let left = if percent + HYSTERESIS_PERCENT >= 100 {
            PoolLevel::Exhausted
        } else {
            PoolLevel::of(percent + HYSTERESIS_PERCENT)
        };
        reached.max(self.min(left))
    }

    fn of(percent: u64) -> PoolLevel {
        match percent {
            NEARLY_FULL.. => PoolLevel::NearlyFull,
            FILLING.. => PoolLevel::Filling,
            _ => PoolLevel::Room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_level_has_hysteresis() {
        let usage = |leased| PoolUse { size: 100, leased, ..PoolUse::default() };
        let mut level = PoolLevel::Room;
        let mut reached = Vec::new();
        for leased in [50, 80, 79, 80, 76, 81, 74, 80, 96, 92, 95, 89, 60] {
            let next = level.next(usage(leased), false);
            if next > level {
                reached.push((leased, next));
            }
            level = next;
        }
        use PoolLevel::{Filling, NearlyFull};
        assert_eq!(reached, [(80, Filling), (80, Filling), (96, NearlyFull)]);
        assert_eq!(level, PoolLevel::Room);
        let full = level.next(usage(100), true);
        assert_eq!(
            (full, full.next(usage(96), false)),
            (PoolLevel::Exhausted, PoolLevel::Exhausted)
        );
        assert_eq!(full.next(usage(94), false), PoolLevel::NearlyFull);
    }
}
