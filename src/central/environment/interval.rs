//! Limits periodic work to one run in each interval.

use crate::locks::Leaf;
use std::time::Duration;

/// Monotonic time of the last run.
#[derive(Default)]
pub(crate) struct Interval(Leaf<Option<Duration>>);

impl Interval {
    /// True if nothing ran within the interval. The caller then runs the work: this run counts from
    /// `now`.
    pub(crate) fn is_due(&self, now: Duration, interval: Duration) -> bool {
        let mut last_run = self.0.lock();
        let is_due = last_run.is_none_or(|last| now.saturating_sub(last) >= interval);
        if is_due {
            *last_run = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_due_first_and_then_once_per_period() {
        let interval = Interval::default();
        let second = Duration::from_secs(1);
        let due: Vec<bool> =
            [0, 1, 4, 5, 6].iter().map(|at| interval.is_due(second * *at, second * 5)).collect();
        assert_eq!(due, [true, false, false, true, false]);
    }
}
