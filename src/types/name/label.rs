//! Keys and values of labels.

use crate::ParseError;
use std::{fmt, str::FromStr};

/// Maximum length of a key or value, in characters.
const MAX_LABEL: usize = 63;

fn is_label(text: &str, is_plain: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL
        && [bytes.first(), bytes.last()]
            .into_iter()
            .all(|end| end.is_some_and(|byte| is_plain(*byte)))
        && bytes.iter().all(|byte| is_plain(*byte) || b"-_.".contains(byte))
}

/// Returns the error for a text that is not a label; `letters` are permitted.
fn invalid(text: &str, what: &str, letters: &str) -> ParseError {
    let hint = format!(
        "use 1 to {MAX_LABEL} of {letters}, 0-9, `-`, `_` and `.`, with a letter or digit at both ends"
    );
    ParseError::of_text(text, what, hint)
}

/// The key of a label. A key never ends with `-`, because `KEY-` removes a label on the command
/// line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelKey(String);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelValue(String);

impl FromStr for LabelKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if is_label(text, is_plain) {
            Ok(LabelKey(text.to_owned()))
        } else {
            Err(invalid(text, "is not a label key", "a-z"))
        }
    }
}

impl FromStr for LabelValue {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
        if is_label(text, is_plain) {
            Ok(LabelValue(text.to_owned()))
        } else {
            Err(invalid(text, "is not a label value", "A-Z, a-z"))
        }
    }
}

impl fmt::Display for LabelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for LabelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

crate::serde_as_text!(LabelKey);
crate::serde_as_text!(LabelValue);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_label_is_refused_with_its_text() {
        let long = "a".repeat(MAX_LABEL + 1);
        for text in ["", "-", "rack-", "-rack", "Rack", "a b", "a=b", "a,b", "!a", "ü", &long] {
            assert!(text.parse::<LabelKey>().is_err(), "{text:?}");
        }
        for text in ["", "a b", "a,b", "a=b", ".a", "a-", "ü", "a\n", &long] {
            let error = text.parse::<LabelValue>().expect_err(text);
            assert!(error.to_string().contains(text.trim_end()), "{error}");
        }
        for text in ["rack", "a", "0", "power.feed_1-b", &"a".repeat(MAX_LABEL)] {
            assert!(
                text.parse::<LabelKey>().is_ok() && text.parse::<LabelValue>().is_ok(),
                "{text:?}"
            );
        }
        assert!("Row-7.B".parse::<LabelValue>().is_ok());
    }
}
