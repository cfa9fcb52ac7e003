//! The address of the node list: filters, columns, order and page.

use super::columns::{self, Column};
use crate::client::encoded;
use meshd_api::routes::GetPath;
use serde::Deserialize;

/// Parameters by which the API selects nodes.
const FILTERS: [&str; 7] = ["q", "nodes", "phase", "condition", "attention", "profile", "label"];
/// Parameters of this page that occur once.
const PARAMETERS: [&str; 10] =
    ["q", "nodes", "phase", "condition", "attention", "profile", "label", "sort", "after", "all"];
/// The parameter of a column.
const COLUMN: &str = "col";

/// Query of the list, as parameters and values.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct ListQuery(Vec<(String, String)>);

impl ListQuery {
    /// Returns the first value of a parameter; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    /// Returns the column that sorts the list.
    pub(super) fn order(&self) -> &str {
        Some(self.get("sort")).filter(|order| !order.is_empty()).unwrap_or("name")
    }

    /// Returns true if the list selects all of its rows.
    pub(super) fn selects_all(&self) -> bool {
        !self.get("all").is_empty()
    }

    /// Returns the columns that the list shows.
    pub(super) fn columns(&self) -> Vec<&'static Column> {
        let values = self.0.iter().filter(|(key, _)| key == COLUMN);
        columns::chosen(values.map(|(_, value)| value.as_str()))
    }

    /// Adds the filters to a request.
    pub(super) fn filter<R>(&self, path: GetPath<R>) -> GetPath<R> {
        FILTERS.iter().fold(path, |path, name| path.with_nonempty(name, self.get(name)))
    }

    /// Returns the query with some parameters replaced; an empty value removes a parameter.
    pub(super) fn with(&self, changes: &[(&str, &str)]) -> String {
        let value = |name| {
            changes
                .iter()
                .find(|(key, _)| *key == name)
                .map_or_else(|| self.get(name), |(_, value)| value)
        };
        let once = PARAMETERS.iter().map(|name| (*name, value(name)));
        let columns = self.0.iter().filter(|(key, _)| key == COLUMN);
        let columns = columns.map(|(_, value)| (COLUMN, value.as_str()));
        let pairs = once.filter(|(_, value)| !value.is_empty()).chain(columns);
        pairs
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect::<Vec<_>>()
            .join("&")
    }
}
