//! The clock of the machine, and waiting.

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::{io, time::Duration};

/// Largest difference to the time of the configuration that is not corrected, in seconds.
const TOLERANCE_S: i64 = 60;

/// Returns true if a clock must be set to the time of delivery: many boards wake up in 1970 or
/// 2099, and refuse a certificate of another time.
fn is_wrong(now: i64, delivered: i64) -> bool {
    now.saturating_sub(delivered).saturating_abs() > TOLERANCE_S
}

/// Steps the clock in either direction if it is wrong. Returns the previous time in seconds since
/// 1970 if it was.
pub fn step(delivered: i64) -> io::Result<Option<i64>> {
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    if !is_wrong(now, delivered) {
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
    fn clock_is_wrong_beyond_a_minute_in_either_direction() {
        let delivered = 1_790_000_000;
        for (now, wrong) in [
            (delivered, false),
            (delivered - 60, false),
            (delivered + 60, false),
            (delivered - 61, true),
            (delivered + 61, true),
            (0, true),
            (i64::MIN, true),
            (i64::MAX, true),
        ] {
            assert_eq!(is_wrong(now, delivered), wrong, "{now}");
        }
    }
}
