//! The text that is looked for in names, addresses and numbers.

use std::str::FromStr;

/// Fewest characters of a text that is looked for.
pub(crate) const MIN_TEXT: usize = 2;
/// Most characters of a text that is looked for.
pub(crate) const MAX_TEXT: usize = 100;

/// A text that is looked for; upper and lower case are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needle(String);

/// The text is too short, too long or not one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a text of {0} characters cannot be looked for; use {MIN_TEXT} to {MAX_TEXT} characters without control characters"
)]
pub(crate) struct NeedleError(usize);

/// How well a text fits; the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// Both texts are equal.
    Whole,
    /// The text begins with the one that is looked for.
    Beginning,
    /// The text contains the one that is looked for.
    Part,
}

impl FromStr for Needle {
    type Err = NeedleError;

    fn from_str(text: &str) -> Result<Self, NeedleError> {
        let text = text.trim();
        let count = text.chars().count();
        if !(MIN_TEXT..=MAX_TEXT).contains(&count) || text.chars().any(char::is_control) {
            return Err(NeedleError(count));
        }
        Ok(Needle(text.to_lowercase()))
    }
}

impl Needle {
    /// The text in lower case.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// How well a text fits; `None` if it does not contain the text that is looked for.
    pub(crate) fn fit(&self, text: &str) -> Option<Fit> {
        let needle = self.0.as_bytes();
        let (at, length) = if self.0.is_ascii() {
            // Most texts are short and plain: this path allocates nothing.
            let found = text.as_bytes().windows(needle.len()).position(|part| part.eq_ignore_ascii_case(needle));
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

    /// True if a text contains the one that is looked for.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.fit(text).is_some()
    }
}
