//! Durations in configuration files: `30s`, `15m`, `1h`, `7d`.

use std::time::Duration;

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Parses a whole number with a unit s, m, h or d.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let (_, seconds) = UNITS.into_iter().find(|(letter, _)| *letter == unit)?;
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || digits.len() > 9 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
}

/// Formats whole seconds in the largest unit without a fraction.
pub fn write_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    let fits = |(_, unit): &(char, u64)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (letter, unit) = UNITS.into_iter().find(fits).unwrap_or(('s', 1));
    format!("{}{letter}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn duration_without_known_unit_is_refused() {
        for text in ["", "30", "s", "1w", "-1s", "1.5h", "1 h", "99999999999d", "1ü"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert_eq!(parse_duration("90m").map(write_duration).as_deref(), Some("90m"));
        assert_eq!(parse_duration("120m").map(write_duration).as_deref(), Some("2h"));
    }

    proptest! {
        #[test]
        fn duration_round_trips_and_junk_never_panics(seconds in 0u64..999_999_999, junk in "\\PC{0,12}") {
            let span = Duration::from_secs(seconds);
            prop_assert_eq!(parse_duration(&write_duration(span)), Some(span));
            let _ = parse_duration(&junk);
        }
    }
}
