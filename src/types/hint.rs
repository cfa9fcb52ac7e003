//! Hints: the next step of an error's reader, as data beside the message.

use std::{error::Error, fmt};

/// An error with a hint. Each surface renders the hint once: the command line, the API and the web
/// UI beside the message.
pub trait Hint: Error {
    /// Returns the next step in the imperative; `None` if there is none.
    fn hint(&self) -> Option<String>;

    /// Returns the message of the error and of all its sources, without the hint.
    fn message(&self) -> String {
        with_sources(self)
    }
}

impl<T: Hint + ?Sized> Hint for std::sync::Arc<T> {
    fn hint(&self) -> Option<String> {
        (**self).hint()
    }

    fn message(&self) -> String {
        (**self).message()
    }
}

/// Returns the message of an error with those of all its sources.
pub fn with_sources<E: Error + ?Sized>(error: &E) -> String {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// A text that is not a value of its type. `Display` writes the hint, too, because the parsers of
/// the command line and of JSON show only that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    message: String,
    hint: String,
}

impl ParseError {
    /// Maximum length of a quoted text, in characters.
    const MAX_QUOTED: usize = 80;

    /// Creates an error from a message and a hint, which may be empty.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        ParseError { message: message.into(), hint: hint.into() }
    }

    /// Creates an error whose message quotes the beginning of the text: `` `text` is not a time``.
    pub fn of_text(text: &str, is_what: &str, hint: impl Into<String>) -> Self {
        let plain = |c: char| if c.is_control() { '?' } else { c };
        let quoted: String = text.chars().take(Self::MAX_QUOTED).map(plain).collect();
        Self::new(format!("`{quoted}` {is_what}"), hint)
    }
}

impl Hint for ParseError {
    fn hint(&self) -> Option<String> {
        Some(self.hint.clone()).filter(|hint| !hint.is_empty())
    }

    fn message(&self) -> String {
        self.message.clone()
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, "; {}", self.hint) }
    }
}

impl Error for ParseError {}

/// Implements [`Hint`] for an error type. Each arm is a pattern with a format string of the fields
/// that the pattern binds; an arm behind `@source` has the error whose hint it is.
#[macro_export]
macro_rules! hints {
    ($error:ty { $($pattern:pat => $hint:literal $(, $argument:expr)*;)* $(@source $outer:pat => $source:expr;)* }) => {
        impl $crate::Hint for $error {
            fn hint(&self) -> Option<String> {
                #[allow(unreachable_patterns, clippy::useless_format)]
                match self {
                    $($pattern => Some(format!($hint $(, $argument)*)),)*
                    $($outer => $crate::Hint::hint($source),)*
                    _ => None,
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::{Hint as _, ParseError};

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("the store is closed")]
        Inner(#[from] Inner),
        #[error("too many")]
        Full { limit: u32 },
        #[error("other")]
        Other,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("disk on fire; really")]
    struct Inner;

    hints!(Inner { Inner => "look inside"; });
    hints!(Outer {
        Outer::Full { limit } => "use at most {limit}";
        @source Outer::Inner(inner) => inner;
    });

    #[test]
    fn hint_has_fields_and_comes_from_source() {
        let hints =
            [Outer::Inner(Inner), Outer::Full { limit: 3 }, Outer::Other].map(|error| error.hint());
        assert_eq!(hints, [Some("look inside".to_owned()), Some("use at most 3".to_owned()), None]);
        assert_eq!(Outer::Inner(Inner).message(), "the store is closed: disk on fire; really");
    }

    #[test]
    fn text_that_cannot_be_parsed_is_quoted_whole_beside_the_hint() {
        let error = ParseError::of_text("a; b\n", "is not a time", "write it");
        assert_eq!(error.message(), "`a; b?` is not a time");
        assert_eq!(error.hint().as_deref(), Some("write it"));
        assert_eq!(error.to_string(), "`a; b?` is not a time; write it");
    }
}
