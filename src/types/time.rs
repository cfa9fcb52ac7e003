//! Wall-clock time: RFC 3339 in UTC, with milliseconds.

use crate::ParseError;
use std::{fmt, str::FromStr, time::Duration};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Milliseconds since 1970-01-01T00:00:00Z. Only the edge of the program reads a clock; all logic
/// receives the time as an argument.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// 9999-12-31T23:59:59.999Z, the latest time that RFC 3339 can represent.
const MAX_MILLIS: i64 = 253_402_300_799_999;

impl Timestamp {
    pub const EPOCH: Timestamp = Timestamp(0);

    /// Creates a time from milliseconds since the epoch, clamped to the years 1970 to 9999.
    pub fn from_millis(millis: i64) -> Self {
        Timestamp(millis.clamp(0, MAX_MILLIS))
    }

    /// Returns milliseconds since the epoch.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Returns whole seconds since the epoch.
    pub fn seconds(self) -> i64 {
        self.0 / 1000
    }

    /// Returns this time plus `span`.
    pub fn after(self, span: Duration) -> Self {
        Self::from_millis(
            self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(MAX_MILLIS)),
        )
    }

    /// Returns this time minus `span`.
    pub fn before(self, span: Duration) -> Self {
        Self::from_millis(
            self.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(MAX_MILLIS)),
        )
    }

    /// Returns the time since `earlier`; zero if the clock went back.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// Returns the time between both, in either order. An age that is compared with a limit uses
    /// it: after the clock went back, the time since a later moment is zero, and the limit would be
    /// reached only when the clock is there again.
    pub fn distance(self, other: Timestamp) -> Duration {
        self.since(other).max(other.since(self))
    }

    /// Converts to the type of the `time` crate.
    pub fn to_datetime(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000)
            .expect("a Timestamp lies within the years 1970 to 9999")
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.to_datetime();
        let date = at.date();
        let millis = at.millisecond();
        write!(f, "{date}T{:02}:{:02}:{:02}.{millis:03}Z", at.hour(), at.minute(), at.second())
    }
}

impl FromStr for Timestamp {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| {
            ParseError::of_text(text, "is not a time", "write it as 2026-01-31T12:00:00Z")
        })?;
        let millis = at.unix_timestamp_nanos() / 1_000_000;
        Ok(Self::from_millis(i64::try_from(millis).unwrap_or(MAX_MILLIS)))
    }
}

super::debug_as_text!(Timestamp);
super::serde_as_text!(Timestamp);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn timestamp_round_trips_as_text(millis in 0..=MAX_MILLIS, junk in "\\PC{0,30}") {
            let at = Timestamp::from_millis(millis);
            prop_assert_eq!(at.to_string().parse(), Ok(at));
            let _ = junk.parse::<Timestamp>();
        }
    }

    #[test]
    fn clock_set_back_yields_zero_duration() {
        let early = Timestamp::from_millis(5);
        let late = Timestamp::from_millis(9);
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.since(early), Duration::from_millis(4));
        assert_eq!(
            (early.distance(late), late.distance(early)),
            (Duration::from_millis(4), Duration::from_millis(4))
        );
    }
}
