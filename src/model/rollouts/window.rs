//! The daily time in which nodes of a rollout begin.

use meshd_types::{ParseError, Timestamp};
use std::{fmt, str::FromStr};

const MINUTES_OF_DAY: u32 = 24 * 60;
const HINT: &str = "write two times in UTC, such as 22:00-06:00";

/// A part of each day, in minutes since midnight UTC. It may contain midnight. As text:
/// `22:00-06:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DailyWindow {
    from: u32,
    /// The first minute after the window.
    to: u32,
}

impl DailyWindow {
    pub fn contains(self, now: Timestamp) -> bool {
        let minute = u32::try_from(now.seconds().div_euclid(60) % i64::from(MINUTES_OF_DAY));
        let since = (minute.unwrap_or(0) + MINUTES_OF_DAY - self.from) % MINUTES_OF_DAY;
        since < (self.to + MINUTES_OF_DAY - self.from) % MINUTES_OF_DAY
    }
}

fn minutes(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, below: u32| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| is_plain && *number < below)
    };
    Some(number(hours, 24)? * 60 + number(minutes, 60)?)
}

impl FromStr for DailyWindow {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let times =
            text.split_once('-').and_then(|(from, to)| Some((minutes(from)?, minutes(to)?)));
        match times {
            Some((from, to)) if from != to => Ok(DailyWindow { from, to }),
            _ => Err(ParseError::of_text(text, "is not a part of a day", HINT)),
        }
    }
}

impl fmt::Display for DailyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DailyWindow { from, to } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

meshd_types::serde_as_text!(DailyWindow);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_over_midnight_contains_the_night() {
        let at = |hour: i64, minute: i64| {
            Timestamp::from_millis(((400 * 24 + hour) * 60 + minute) * 60_000 + 59_999)
        };
        let night: DailyWindow = "22:00-06:30".parse().unwrap();
        assert_eq!(night.to_string(), "22:00-06:30");
        for (hour, minute, is_in) in
            [(21, 59, false), (22, 0, true), (0, 0, true), (6, 29, true), (6, 30, false)]
        {
            assert_eq!(night.contains(at(hour, minute)), is_in, "{hour}:{minute}");
        }
        let noon: DailyWindow = "11:00-13:00".parse().unwrap();
        assert!(noon.contains(at(12, 0)) && !noon.contains(at(13, 0)) && !noon.contains(at(0, 0)));
    }

    #[test]
    fn text_that_is_no_window_is_refused() {
        for text in ["", "22:00", "22:00-22:00", "24:00-06:00", "2:00-06:00", "+2:00-06:00", "a-b"]
        {
            assert!(text.parse::<DailyWindow>().is_err(), "{text}");
        }
    }
}
