//! Position of the next page in a list, as an opaque text.

use meshd_types::{ParseError, hex};
use std::{fmt, str::FromStr};

/// Maximum length of a cursor, in bytes.
pub(crate) const MAX_CURSOR: usize = 1024;

/// Last row of a page: the order, the row's value in that order, and its ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Value of `sort` in the request of the page.
    pub(crate) sort: String,
    /// Value of the row in this order.
    pub(crate) key: String,
    /// Unique ID of the row.
    pub(crate) id: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            serde_json::to_vec(&[&self.sort, &self.key, &self.id]).map_err(|_| fmt::Error)?;
        f.write_str(&hex(&parts))
    }
}

impl FromStr for Cursor {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts = unhex(text).filter(|_| text.len() <= MAX_CURSOR);
        let parts = parts.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let hint = "use the value of the header x-next-cursor";
        let [sort, key, id] =
            parts.ok_or_else(|| ParseError::new("not a cursor of this list", hint))?;
        Ok(Cursor { sort, key, id })
    }
}

/// Decodes hexadecimal digits of any length.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}
