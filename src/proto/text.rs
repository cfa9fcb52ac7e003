//! Names that are valid by construction: a type for each rule.

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
            type Err = meshd_types::ParseError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let rule: fn(&str) -> bool = $rule;
                let error = || {
                    meshd_types::ParseError::of_text(text, concat!("is no ", $what), $hint)
                };
                rule(text).then(|| $type(text.to_owned())).ok_or_else(error)
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
