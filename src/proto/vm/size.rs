//! Sizes of memory and disks: `512M`, `64G`.

use meshd_types::{ParseError, serde_as_text};
use std::{fmt, str::FromStr};

/// Unit letters and their factors, the largest first.
const UNITS: [(char, u64); 4] = [('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// A size in bytes, a whole number of KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Converts from MiB; saturates.
    pub const fn from_mib(mib: u64) -> Self {
        ByteSize(mib.saturating_mul(1 << 20))
    }

    /// Converts from bytes, rounded down to whole KiB.
    pub const fn from_bytes(bytes: u64) -> Self {
        ByteSize(bytes - bytes % 1024)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the size in MiB, rounded down.
    pub const fn mib(self) -> u64 {
        self.0 >> 20
    }
}

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let unit = text.chars().last()?;
            let (_, factor) = UNITS.iter().find(|(letter, _)| *letter == unit)?;
            let digits = &text[..text.len() - 1];
            let plain = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
            let number: u64 = plain.then(|| digits.parse().ok())??;
            number.checked_mul(*factor).map(ByteSize)
        };
        let hint = "write a whole number and K, M, G or T: 512M, 64G";
        read().ok_or_else(|| ParseError::of_text(text, "is not a size", hint))
    }
}

impl fmt::Display for ByteSize {
    /// Uses the largest unit that divides the size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, factor) =
            UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor)).unwrap_or(&UNITS[3]);
        write!(f, "{}{letter}", self.0 / factor)
    }
}

serde_as_text!(ByteSize);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn byte_size_is_digits_and_one_unit_letter() {
        for (text, bytes) in
            [("1K", 1024), ("512M", 512 << 20), ("64G", 64 << 30), ("2T", 2 << 40), ("0M", 0)]
        {
            assert_eq!(text.parse::<ByteSize>().map(ByteSize::bytes), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "64",
            "64g",
            "64GB",
            " 64G",
            "+1G",
            "-1G",
            "1.5G",
            "99999999999999T",
            "1é",
            "٣G",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn displayed_value_round_trips_and_junk_never_panics(kib in 0..1u64 << 50, junk in "\\PC{0,12}") {
            let size = ByteSize::from_bytes(kib * 1024);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let _ = junk.parse::<ByteSize>();
        }
    }
}
