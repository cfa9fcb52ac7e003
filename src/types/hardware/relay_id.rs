//! IDs of switch ports that DHCP relays report: circuit ID and remote ID of option 82 (RFC 3046).

use crate::{ParseError, matches_glob};
use std::{fmt, str::FromStr};

/// Maximum length of a pattern, in bytes: that of an ID in hexadecimal.
const MAX_PATTERN: usize = 512;
const HINT: &str = "write the text that `meshd node show` prints, such as \"eth1/7\" or \"0x0004000a\"; `*` and `?` are wildcards";

/// A pattern of IDs with the wildcards `*` and `?`: of text, or of hexadecimal digits after `0x`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelayIdPattern(String);

impl RelayIdPattern {
    /// Returns whether an ID, in hexadecimal, matches.
    pub fn fits(&self, hex: &str) -> bool {
        match self.0.strip_prefix("0x") {
            Some(digits) => matches_glob(digits, &hex.to_ascii_lowercase()),
            None => readable(hex).is_some_and(|text| matches_glob(&self.0, &text)),
        }
    }
}

impl FromStr for RelayIdPattern {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_text = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let is_valid = match text.strip_prefix("0x") {
            Some(digits) => digits.bytes().all(|it| it.is_ascii_hexdigit() || b"*?".contains(&it)),
            None => text.bytes().all(is_text) && text.trim() == text,
        };
        if !is_valid || text.is_empty() || text.len() > MAX_PATTERN {
            return Err(ParseError::of_text(text, "is no ID of a switch port", HINT));
        }
        Ok(RelayIdPattern(match text.strip_prefix("0x") {
            Some(digits) => format!("0x{}", digits.to_ascii_lowercase()),
            None => text.to_owned(),
        }))
    }
}

impl fmt::Display for RelayIdPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an ID, given in hexadecimal, as a pattern that matches nothing else: text if it is
/// printable, because many relays send the name of an interface.
pub fn relay_id_text(hex: &str) -> String {
    let is_plain = |text: &String| !text.starts_with("0x") && !text.contains(['*', '?']);
    readable(hex).filter(is_plain).unwrap_or_else(|| format!("0x{hex}"))
}

/// Decodes an ID that is printable text.
fn readable(hex: &str) -> Option<String> {
    let pairs = (0..hex.len()).step_by(2);
    let bytes: Option<Vec<u8>> =
        pairs.map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect();
    let text = String::from_utf8(bytes?).ok()?;
    let is_text = |c: char| c.is_ascii_graphic() || c == ' ';
    (!text.is_empty() && text.chars().all(is_text) && text.trim() == text).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    #[test]
    fn shown_id_is_a_pattern_that_matches_it() {
        for id in
            [&b"eth1/7"[..], b"Gi 1/0/7", b"\x00\x04\x00\x0a", b"0x12", b"a*", b" x", b"", b"\xff"]
        {
            let id = hex(id);
            let shown = relay_id_text(&id);
            let pattern: RelayIdPattern = shown.parse().unwrap_or_else(|_| panic!("{shown}"));
            assert!(pattern.fits(&id), "{shown}");
            assert!(!pattern.fits(&hex(b"other")), "{shown}");
        }
        assert_eq!(relay_id_text("646f776e31"), "down1");
        assert_eq!(relay_id_text("0004000a"), "0x0004000a");
    }

    #[test]
    fn wildcards_match_text_and_hexadecimal_digits() {
        let fits = |pattern: &str, id: &[u8]| {
            pattern.parse::<RelayIdPattern>().expect(pattern).fits(&hex(id))
        };
        assert!(fits("eth1/*", b"eth1/7") && !fits("eth1/*", b"eth2/7"));
        assert!(fits("0x0004*", &[0, 4, 0, 10]) && fits("0x0004000A", &[0, 4, 0, 10]));
        assert!(!fits("0x0004", &[0, 4, 0, 10]) && !fits("*", &[0, 4]));
        for wrong in ["", "0xzz", "a\tb", "é", " a", &"x".repeat(513)] {
            assert!(wrong.parse::<RelayIdPattern>().is_err(), "{wrong:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_id_is_shown_as_a_pattern_that_matches_it(id in proptest::collection::vec(0_u8.., 0..64)) {
            let id = hex(&id);
            let pattern: RelayIdPattern = relay_id_text(&id).parse().expect("a pattern");
            proptest::prop_assert!(pattern.fits(&id));
        }
    }
}
