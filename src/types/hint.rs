//! Hints: the next step of an error's reader, as data beside the message.

/// An error with a hint. Each surface renders the hint once: the command line, the API and the web
/// UI beside the message.
pub trait Hint {
    /// Returns the next step in the imperative; `None` if there is none.
    fn hint(&self) -> Option<String>;
}

impl<T: Hint + ?Sized> Hint for std::sync::Arc<T> {
    fn hint(&self) -> Option<String> {
        (**self).hint()
    }
}

/// Returns the hint of a text `cause; hint`, or an empty text. The cause may quote anything; the
/// hint is constant and has no `; `.
pub fn hint_at_end(text: &str) -> &str {
    text.rsplit_once("; ").map_or("", |(_, hint)| hint)
}

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
    use crate::Hint as _;

    enum Outer {
        Inner(Inner),
        Full { limit: u32 },
        Other,
    }

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
    }
}
