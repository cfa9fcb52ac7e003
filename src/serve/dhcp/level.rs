//! How full a pool is, in words: each is said once when it is reached, and again only after the pool was well below it.

use crate::serve::central::PoolUse;

/// Percent of a pool in use.
const FILLING: u64 = 80;
const NEARLY_FULL: u64 = 95;
/// So much below a level it must be before the level is left, in percent.
const BELOW: u64 = 5;

/// How full a pool is. Ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is room.
    #[default]
    Room,
    /// Four fifths are in use.
    Filling,
    /// All but a twentieth is in use.
    NearlyFull,
    /// A machine got no address.
    Exhausted,
}

impl Level {
    /// The level after this one. `refused`: a machine has just got no address.
    pub(super) fn next(self, usage: PoolUse, refused: bool) -> Level {
        let used = u64::from(usage.leased) + u64::from(usage.offered) + u64::from(usage.declined);
        let percent = (used * 100).checked_div(u64::from(usage.size)).unwrap_or(0);
        let reached = if refused { Level::Exhausted } else { Level::of(percent) };
        let left = if percent + BELOW >= 100 { Level::Exhausted } else { Level::of(percent + BELOW) };
        reached.max(self.min(left))
    }

    fn of(percent: u64) -> Level {
        match percent {
            NEARLY_FULL.. => Level::NearlyFull,
            FILLING.. => Level::Filling,
            _ => Level::Room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_wavers_around_a_level_says_it_once() {
        let usage = |leased| PoolUse { size: 100, leased, ..PoolUse::default() };
        let mut level = Level::Room;
        let mut reached = Vec::new();
        for leased in [50, 80, 79, 80, 76, 81, 74, 80, 96, 92, 95, 89, 60] {
            let next = level.next(usage(leased), false);
            if next > level {
                reached.push((leased, next));
            }
            level = next;
        }
        use Level::{Filling, NearlyFull};
        assert_eq!(reached, [(80, Filling), (80, Filling), (96, NearlyFull)]);
        assert_eq!(level, Level::Room);
        let full = level.next(usage(100), true);
        assert_eq!((full, full.next(usage(96), false)), (Level::Exhausted, Level::Exhausted));
        assert_eq!(full.next(usage(94), false), Level::NearlyFull);
    }
}
