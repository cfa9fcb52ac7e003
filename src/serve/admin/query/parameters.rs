//! Reads and checks query parameters; every error names its parameter.

use super::{
    cursor::Cursor,
    page::{PageRequest, SortBy},
    text::Needle,
};
use crate::admin::error::Refused;
use axum::{extract::Query, http::Uri};
use meshd_api::routes::max_query_value;
use meshd_config::{reader::brief, suggest};
use meshd_types::{Hint as _, ParseError};
use std::{collections::BTreeMap, str::FromStr};

/// Maximum number of rows per page.
pub(crate) const MAX_PAGE: usize = 1000;
/// Maximum number of words in a list parameter.
pub(crate) const MAX_WORDS: usize = 64;

/// Reason why a query is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParameterError {
    #[error("unknown parameter `{name}`")]
    Unknown { name: String, hint: String },
    #[error("parameter `{name}` is given more than once")]
    Twice { name: String },
    #[error("invalid parameter `{name}`: {}", .cause.message())]
    Invalid { name: &'static str, cause: ParseError },
}

meshd_types::hints!(ParameterError {
    ParameterError::Unknown { hint, .. } => "{hint}";
    ParameterError::Twice { .. } => "give it once";
    @source ParameterError::Invalid { cause, .. } => cause;
});

impl From<ParameterError> for Refused {
    fn from(error: ParameterError) -> Self {
        Refused::unreadable(&error)
    }
}

impl ParameterError {
    pub(crate) fn invalid(
        name: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        ParameterError::Invalid { name, cause: ParseError::new(message, hint) }
    }
}

/// Fields and orders of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListSpec {
    /// Selectable fields of a row.
    pub(crate) fields: &'static [&'static str],
    /// Supported orders. The first one is the default.
    pub(crate) sorts: &'static [&'static str],
}

/// Parameters of one request by name. The route has each of them, and each occurs once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Reads the query of a request. Checks names and lengths.
    pub(crate) fn of(uri: &Uri, known: &[&'static str]) -> Result<Self, Refused> {
        let pairs = Query::try_from_uri(uri);
        let Query(pairs) = pairs.map_err(|error| Refused::bad_request(error.body_text()))?;
        Ok(Parameters::read(pairs, known)?)
    }

    pub(super) fn read(
        pairs: Vec<(String, String)>,
        known: &[&'static str],
    ) -> Result<Self, ParameterError> {
        let mut all = BTreeMap::new();
        for (name, value) in pairs {
            let Some(name) = known.iter().copied().find(|known| *known == name) else {
                let hint = suggest(&name, known.iter().copied());
                return Err(ParameterError::Unknown { name: brief(&name), hint });
            };
            let most = max_query_value(name);
            if value.len() > most {
                let message = format!("{} bytes are too long", value.len());
                let hint = format!("use at most {most}");
                return Err(ParameterError::invalid(name, message, hint));
            }
            if all.insert(name.to_owned(), value).is_some() {
                return Err(ParameterError::Twice { name: name.to_owned() });
            }
        }
        Ok(Parameters(all))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Parses a value. The error of the type states the expected form.
    pub(crate) fn parsed<T>(&self, name: &'static str) -> Result<Option<T>, ParameterError>
    where
        T: FromStr<Err = ParseError>,
    {
        let parsed = self.get(name).map(str::parse).transpose();
        parsed.map_err(|cause| ParameterError::Invalid { name, cause })
    }

    /// Parses `true` or `false`; a missing parameter is `false`.
    pub(crate) fn flag(&self, name: &'static str) -> Result<bool, ParameterError> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(ParameterError::invalid(
                name,
                format!("`{}` is not a boolean", brief(other)),
                "use true or false",
            )),
        }
    }

    /// Parses a whole number.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<u64>, ParameterError> {
        let odd = |text: &str| {
            let message = format!("`{}` is not a number", brief(text));
            ParameterError::invalid(name, message, "use a whole number from 0 on")
        };
        let number = |text: &str| text.parse().map_err(|_| odd(text));
        self.get(name).map(number).transpose()
    }

    /// Parses a comma-separated list of distinct words, at least one. Returns `None` without the
    /// parameter.
    pub(crate) fn words(
        &self,
        name: &'static str,
        known: &[&'static str],
    ) -> Result<Option<Vec<&'static str>>, ParameterError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let mut words: Vec<&'static str> = Vec::new();
        for word in pieces(name, text)? {
            let known = known_word(name, word, known)?;
            if !words.contains(&known) {
                words.push(known);
            }
        }
        Ok(Some(words))
    }

    /// Parses a comma-separated list of values.
    pub(crate) fn several<T>(&self, name: &'static str) -> Result<Option<Vec<T>>, ParameterError>
    where
        T: FromStr<Err = ParseError>,
    {
        let Some(text) = self.get(name) else { return Ok(None) };
        let parsed =
            |word: &str| word.parse().map_err(|cause| ParameterError::Invalid { name, cause });
        pieces(name, text)?.into_iter().map(parsed).collect::<Result<_, _>>().map(Some)
    }

    /// Parses the search text.
    pub(crate) fn needle(&self) -> Result<Option<Needle>, ParameterError> {
        self.parsed("q")
    }

    /// Parses order, cursor and size of one page.
    pub(crate) fn page(&self, spec: &ListSpec) -> Result<PageRequest, ParameterError> {
        let sort = self.sort(spec)?;
        let after: Option<Cursor> = self.parsed("after")?;
        let sort = sort.unwrap_or(SortBy { key: spec.sorts[0], descending: false });
        if after.as_ref().is_some_and(|cursor| cursor.sort != sort.to_string()) {
            let message = format!("the cursor belongs to another order than `{sort}`");
            return Err(ParameterError::invalid("after", message, "repeat `sort` on every page"));
        }
        let limit = self.number("limit")?.map(|limit| match usize::try_from(limit) {
            Ok(limit @ 1..=MAX_PAGE) => Ok(limit),
            _ => Err(ParameterError::invalid(
                "limit",
                format!("{limit} is out of range"),
                format!("use 1 to {MAX_PAGE}"),
            )),
        });
        let mut limit = limit.transpose()?;
        if after.is_some() {
            // A request with a cursor always receives pages.
            limit = limit.or(Some(MAX_PAGE));
        }
        Ok(PageRequest { limit, after, sort })
    }

    /// Parses the order; a minus sign reverses it.
    pub(crate) fn sort(&self, spec: &ListSpec) -> Result<Option<SortBy>, ParameterError> {
        let Some(text) = self.get("sort") else { return Ok(None) };
        let (word, descending) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
        Ok(Some(SortBy { key: known_word("sort", word, spec.sorts)?, descending }))
    }

    /// Parses the selected fields of each row; `None` for all.
    pub(crate) fn fields(
        &self,
        spec: &ListSpec,
    ) -> Result<Option<Vec<&'static str>>, ParameterError> {
        self.words("fields", spec.fields)
    }
}

/// Returns the known word that equals `word`.
fn known_word(
    name: &'static str,
    word: &str,
    known: &[&'static str],
) -> Result<&'static str, ParameterError> {
    known.iter().copied().find(|known| *known == word).ok_or_else(|| {
        let hint = suggest(word, known.iter().copied());
        ParameterError::invalid(name, format!("`{}` is unknown", brief(word)), hint)
    })
}

/// Splits a comma-separated list into words.
fn pieces<'t>(name: &'static str, text: &'t str) -> Result<Vec<&'t str>, ParameterError> {
    let words: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .take(MAX_WORDS + 1)
        .collect();
    match words.len() {
        0 => Err(ParameterError::invalid(name, "no word", "write words with commas between them")),
        count if count > MAX_WORDS => {
            let hint = format!("write at most {MAX_WORDS}");
            Err(ParameterError::invalid(name, "too many words", hint))
        }
        _ => Ok(words),
    }
}
