//! Converts a list to an HTTP response: selected fields, cursor, number of rows, entity tag.

use super::{
    page::{OrderKey, ResultPage, cut},
    parameters::{ListSpec, Parameters},
};
use crate::admin::error::Refused;
use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH},
    },
    response::{IntoResponse as _, Response},
};
use meshd_api::{CURSOR_HEADER, TOTAL_HEADER};
use meshd_types::{Digest, hex};
use serde::Serialize;
use serde_json::Value;

/// Length of the digest in an entity tag, in bytes.
const TAG_BYTES: usize = 16;

/// Format of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// A JSON array.
    Array,
    /// One JSON object per line.
    Lines,
}

impl Encoding {
    fn media(self) -> &'static str {
        match self {
            Encoding::Array => "application/json",
            Encoding::Lines => "application/x-ndjson",
        }
    }

    fn bytes<T: Serialize>(self, rows: &[T]) -> Result<Vec<u8>, serde_json::Error> {
        if self == Encoding::Array {
            return serde_json::to_vec(rows);
        }
        let mut out = Vec::new();
        for row in rows {
            serde_json::to_writer(&mut out, row)?;
            out.push(b'\n');
        }
        Ok(out)
    }
}

/// Response of a list route.
#[derive(Debug)]
pub(crate) struct Listing<T> {
    pub(crate) rows: Vec<T>,
    /// Fields of each row; `None` for all.
    pub(crate) fields: Option<Vec<&'static str>>,
    /// Cursor of the next page.
    pub(crate) next: Option<String>,
    /// Number of rows on all pages; `None` if the route does not count them.
    pub(crate) total: Option<usize>,
    pub(crate) encoding: Encoding,
}

impl<T> Listing<T> {
    /// Returns one page as a JSON array.
    pub(crate) fn page(page: ResultPage<T>, fields: Option<Vec<&'static str>>) -> Self {
        let ResultPage { rows, next, total } = page;
        let next = next.map(|next| next.to_string());
        Listing { rows, fields, next, total: Some(total), encoding: Encoding::Array }
    }
}

impl<T: Serialize> Listing<T> {
    /// Returns the response, or 304 if the client has this version.
    pub(crate) fn answer(self, request: &HeaderMap) -> Result<Response, Refused> {
        let bytes = match &self.fields {
            None => self.encoding.bytes(&self.rows),
            Some(fields) => {
                selected(&self.rows, fields).and_then(|rows| self.encoding.bytes(&rows))
            }
        };
        let bytes = bytes
            .map_err(|error| Refused::internal(format!("a list cannot be written: {error}")))?;
        let total = self.total.map(|total| total.to_string());
        let tag = tag(&bytes, self.next.as_deref(), total.as_deref());
        let mut response = if is_known(request, &tag) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(CONTENT_TYPE, self.encoding.media())], Body::from(bytes)).into_response()
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, plain(&tag)?);
        if let Some(next) = &self.next {
            headers.insert(CURSOR_HEADER, plain(next)?);
        }
        if let Some(total) = &total {
            headers.insert(TOTAL_HEADER, plain(total)?);
        }
        Ok(response)
    }
}

/// Returns the response of a list route: one page of the rows, in the requested order. Parameters
/// are checked before `rows` is called.
pub(crate) fn list<T: Serialize>(
    rows: impl FnOnce() -> Result<Vec<T>, Refused>,
    key: fn(&T, &str) -> OrderKey,
    spec: &ListSpec,
    query: &Parameters,
    request: &HeaderMap,
) -> Result<Response, Refused> {
    let page = query.page(spec)?;
    let fields = query.fields(spec)?;
    let rows = rows()?.into_iter().map(|row| (key(&row, page.sort.key), row)).collect();
    Listing::page(cut(rows, &page), fields).answer(request)
}

fn plain(text: &str) -> Result<HeaderValue, Refused> {
    HeaderValue::from_str(text)
        .map_err(|_| Refused::internal("a header of a list is not plain text"))
}

/// Returns rows with the selected fields only. A field that a row lacks is omitted, as in a
/// complete row.
pub(crate) fn selected<T: Serialize>(
    rows: &[T],
    fields: &[&str],
) -> Result<Vec<Value>, serde_json::Error> {
    let select = |row: &T| {
        let mut row = serde_json::to_value(row)?;
        if let Some(object) = row.as_object_mut() {
            object.retain(|name, _| fields.contains(&name.as_str()));
        }
        Ok(row)
    };
    rows.iter().map(select).collect()
}

/// Returns the entity tag of a response. The tag changes with the rows, the cursor and the number
/// of rows.
pub(crate) fn tag(body: &[u8], next: Option<&str>, total: Option<&str>) -> String {
    let fields = [body, next.unwrap_or_default().as_bytes(), total.unwrap_or_default().as_bytes()];
    format!("\"{}\"", hex(&Digest::of_fields(fields).0[..TAG_BYTES]))
}

/// Returns true if the request names this entity tag (RFC 9110, 13.1.2).
pub(crate) fn is_known(request: &HeaderMap, tag: &str) -> bool {
    let values = request.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}
