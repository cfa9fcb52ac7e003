//! Names that are valid by construction: a type for each rule.

/// The text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; {hint}")]
pub struct TextError {
    what: &'static str,
    hint: &'static str,
    text: String,
}

impl TextError {
    pub(crate) fn new(what: &'static str, hint: &'static str, text: &str) -> Self {
        let text = text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
        TextError { what, hint, text }
    }
}

/// Defines a type for texts that a rule accepts, with its name and a hint for errors.
macro_rules! text_type {
    ($(#[$doc:meta])* $type:ident, $what:literal, $hint:literal, $rule:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::text::TextError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let rule: fn(&str) -> bool = $rule;
                rule(text)
                    .then(|| $type(text.to_owned()))
                    .ok_or_else(|| $crate::text::TextError::new($what, $hint, text))
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        meshd_types::serde_as_text!($type);
    };
}

pub(crate) use text_type;

/// Accepts letters, digits and `marks`. Commas and spaces would need escaping in QEMU options.
pub(crate) fn plain(text: &str, longest: usize, marks: &[u8]) -> bool {
    let fits = (1..=longest).contains(&text.len());
    fits && text.bytes().all(|c| c.is_ascii_alphanumeric() || marks.contains(&c))
        && !text.starts_with(['-', '.'])
}
