//! The clock of the machine, and waiting.

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::{io, time::Duration};

/// Returns true if a clock must be set to the time of delivery: many boards wake up in 1970 or
/// 2099, and refuse a certificate of another time. The boot goes on since the delivery, for at most
/// a time: a clock outside of both is wrong.
fn is_wrong(now: i64, delivered: i64, longest: Duration) -> bool {
    let longest = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
    !(delivered..=delivered.saturating_add(longest)).contains(&now)
}

/// Steps the clock in either direction if it is wrong. Returns the previous time in seconds since
/// 1970 if it was. `longest`: longest time since the delivery.
pub fn step(delivered: i64, longest: Duration) -> io::Result<Option<i64>> {
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    if !is_wrong(now, delivered, longest) {
        return Ok(None);
    }
    clock_settime(ClockId::Realtime, Timespec { tv_sec: delivered, tv_nsec: 0 })?;
    Ok(Some(now))
}

/// Waits. Callers have a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "intervals between polls of a state, with a deadline"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_wrong_before_the_delivery_and_after_the_longest_boot() {
        let delivered = 1_790_000_000;
        let half_hour = Duration::from_secs(1800);
        for (now, wrong) in [
            (delivered, false),
            (delivered + 1800, false),
            (delivered - 1, true),
            (delivered + 1801, true),
            (0, true),
            (4_084_000_000, true),
            (i64::MIN, true),
            (i64::MAX, true),
        ] {
            assert_eq!(is_wrong(now, delivered, half_hour), wrong, "{now}");
        }
        assert!(is_wrong(0, i64::MAX, half_hour) && !is_wrong(i64::MAX, i64::MAX, Duration::MAX));
    }
}
