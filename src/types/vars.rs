//! Variables of nodes, groups and profiles, which overlays use.

use crate::ParseError;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Maximum length of a variable's name, in bytes.
const MAX_NAME: usize = 63;
/// Maximum length of a text, in bytes; a key or a certificate fits.
pub const MAX_VAR_TEXT: usize = 16 * 1024;
/// Maximum number of values in a list.
pub const MAX_VAR_LIST: usize = 1024;

/// Variables by name.
pub type Vars = BTreeMap<VarName, VarValue>;

/// The name of a variable, as templates write it: `vars.mpi_slots`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarName(String);

impl VarName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VarName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        let good = text.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
            && text.len() <= MAX_NAME
            && text.bytes().all(plain);
        if good {
            Ok(VarName(text.to_owned()))
        } else {
            let hint = "use 1 to 63 of a-z, 0-9 and `_`, beginning with a letter";
            Err(ParseError::of_text(text, "is not the name of a variable", hint))
        }
    }
}

impl fmt::Display for VarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for VarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

super::serde_as_text!(VarName);

/// The value of a variable. Values must not be secrets, because they are stored, shown and part of
/// a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum VarValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Text of up to 16 KiB.
    Text(String),
    /// Up to 1024 texts.
    List(Vec<String>),
}

impl VarValue {
    /// Returns the type name in `overlay.toml`.
    pub fn type_name(&self) -> &'static str {
        match self {
            VarValue::Bool(_) => "bool",
            VarValue::Integer(_) => "integer",
            VarValue::Text(_) => "text",
            VarValue::List(_) => "list",
        }
    }

    /// Checks the length limits of the value.
    ///
    /// # Errors
    /// The value exceeds the maximum length of its type.
    pub fn check(&self) -> Result<(), String> {
        let long = |text: &String| text.len() > MAX_VAR_TEXT;
        match self {
            VarValue::Text(text) if long(text) => {
                Err(format!("is longer than {MAX_VAR_TEXT} bytes"))
            }
            VarValue::List(texts) if texts.len() > MAX_VAR_LIST => {
                Err(format!("has more than {MAX_VAR_LIST} texts"))
            }
            VarValue::List(texts) if texts.iter().any(long) => {
                Err(format!("holds a text of more than {MAX_VAR_TEXT} bytes"))
            }
            _ => Ok(()),
        }
    }
}

/// Parses a value of the command line: `true`, `4`, `[a, b]`. Any other input is a text, as is
/// `"4"` in quotes.
impl FromStr for VarValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let quoted = |text: &str| {
            text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
        };
        let list = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let value = match (text, list) {
            ("true", _) => VarValue::Bool(true),
            ("false", _) => VarValue::Bool(false),
            (_, Some(inner)) if inner.trim().is_empty() => VarValue::List(Vec::new()),
            (_, Some(inner)) => {
                let each = inner.split(',').map(str::trim);
                VarValue::List(
                    each.map(|one| quoted(one).unwrap_or_else(|| one.to_owned())).collect(),
                )
            }
            (text, None) => match text.parse() {
                Ok(number) => VarValue::Integer(number),
                Err(_) => VarValue::Text(quoted(text).unwrap_or_else(|| text.to_owned())),
            },
        };
        value.check().map(|()| value)
    }
}

impl fmt::Display for VarValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VarValue::Bool(value) => value.fmt(f),
            VarValue::Integer(value) => value.fmt(f),
            VarValue::Text(text) => f.pad(text),
            VarValue::List(texts) => f.pad(&texts.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_name_is_a_template_identifier() {
        for text in ["", "A", "a-b", "1a", "_a", "a b", "a.b", &"a".repeat(64)] {
            assert!(text.parse::<VarName>().is_err(), "{text:?}");
        }
        assert!("mpi_slots2".parse::<VarName>().is_ok());
    }

    #[test]
    fn typed_variable_value_gets_type_of_its_literal() {
        let list =
            |texts: &[&str]| VarValue::List(texts.iter().map(|text| (*text).to_owned()).collect());
        for (typed, value) in [
            ("true", VarValue::Bool(true)),
            ("-4", VarValue::Integer(-4)),
            ("4x", VarValue::Text("4x".into())),
            ("\"4\"", VarValue::Text("4".into())),
            ("", VarValue::Text(String::new())),
            ("[a, \"b c\"]", list(&["a", "b c"])),
            ("[]", list(&[])),
            ("99999999999999999999", VarValue::Text("99999999999999999999".into())),
        ] {
            assert_eq!(typed.parse(), Ok(value), "{typed}");
        }
        assert!("x".repeat(MAX_VAR_TEXT + 1).parse::<VarValue>().is_err());
    }

    #[test]
    fn variable_value_keeps_its_type_when_stored() {
        let list = VarValue::List(vec!["a".into(), "b".into()]);
        for value in [VarValue::Bool(true), VarValue::Integer(-1), VarValue::Text("1".into()), list]
        {
            let json = serde_json::to_string(&value).expect("plain data");
            assert_eq!(serde_json::from_str::<VarValue>(&json).expect("what was written"), value);
        }
    }
}
