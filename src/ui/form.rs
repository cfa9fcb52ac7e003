//! Fields of a submitted form or query.

use serde::Deserialize;

/// Fields in the order in which the browser sent them; a name may occur several times.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

impl Fields {
    /// Returns the first value of a name without surrounding white space; empty if there is none.
    pub(crate) fn text<'a>(&'a self, name: &'a str) -> &'a str {
        self.all(name).next().unwrap_or_default()
    }

    /// Returns all values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.trim())
    }

    /// Returns true if a checkbox is ticked.
    pub(crate) fn is_ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }
}
