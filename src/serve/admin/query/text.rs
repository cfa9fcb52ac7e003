//! Search text for names, addresses and numbers.

use meshd_types::ParseError;
use std::str::FromStr;

/// Minimum length of a search text, in characters.
pub(crate) const MIN_TEXT: usize = 2;
/// Maximum length of a search text, in characters.
pub(crate) const MAX_TEXT: usize = 100;

/// Search text; matching ignores case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needle(String);

/// Quality of a match, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// Both texts are equal.
    Whole,
    /// The text begins with the search text.
    Beginning,
    /// The text contains the search text.
    Part,
}

impl FromStr for Needle {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        let count = text.chars().count();
        if !(MIN_TEXT..=MAX_TEXT).contains(&count) || text.chars().any(char::is_control) {
            let message = format!("cannot search a text of {count} characters");
            let hint =
                format!("use {MIN_TEXT} to {MAX_TEXT} characters without control characters");
            return Err(ParseError::new(message, hint));
        }
        Ok(Needle(text.to_lowercase()))
    }
}

impl Needle {
    /// Returns the search text in lower case.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the match quality; `None` if the text does not contain the search text.
    pub(crate) fn fit(&self, text: &str) -> Option<Fit> {
        let needle = self.0.as_bytes();
        let (at, length) = if self.0.is_ascii() {
            // Avoids an allocation for short ASCII texts, which are the common case.
            let found = text
                .as_bytes()
                .windows(needle.len())
                .position(|part| part.eq_ignore_ascii_case(needle));
            (found?, text.len())
        } else {
            let text = text.to_lowercase();
            (text.find(&self.0)?, text.len())
        };
        Some(match at {
            0 if length == needle.len() => Fit::Whole,
            0 => Fit::Beginning,
            _ => Fit::Part,
        })
    }

    /// Returns true if a text contains the search text.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.fit(text).is_some()
    }
}
