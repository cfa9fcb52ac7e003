//! Sorts rows and cuts one page out of them.

use super::cursor::Cursor;
use meshd_types::Timestamp;
use std::{cmp::Ordering, fmt};

/// Order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortBy {
    pub(crate) key: &'static str,
    pub(crate) descending: bool,
}

impl fmt::Display for SortBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.descending { "-" } else { "" }, self.key)
    }
}

/// Requested part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// Maximum number of rows; `None` for all.
    pub(crate) limit: Option<usize>,
    /// Last row of the previous page.
    pub(crate) after: Option<Cursor>,
    pub(crate) sort: SortBy,
}

/// Sort value of a row, and its ID, which makes the order total.
pub(crate) type OrderKey = (String, String);

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResultPage<T> {
    pub(crate) rows: Vec<T>,
    /// Start of the next page; `None` on the last page.
    pub(crate) next: Option<Cursor>,
    /// Number of rows on all pages.
    pub(crate) total: usize,
}

/// Sorts all rows and cuts the page out of them. Row IDs must be unique.
pub(crate) fn cut<T>(mut rows: Vec<(OrderKey, T)>, request: &PageRequest) -> ResultPage<T> {
    let total = rows.len();
    let order = |one: &OrderKey, other: &OrderKey| {
        let order = one.cmp(other);
        if request.sort.descending { order.reverse() } else { order }
    };
    rows.sort_unstable_by(|(one, _), (other, _)| order(one, other));
    if let Some(Cursor { key, id, .. }) = &request.after {
        let last = (key.clone(), id.clone());
        let seen = rows.partition_point(|(row, _)| order(row, &last) != Ordering::Greater);
        rows.drain(..seen);
    }
    let limit = request.limit.unwrap_or(usize::MAX);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let sort = request.sort.to_string();
    let next = rows.last().filter(|_| more).map(|((key, id), _)| Cursor {
        sort,
        key: key.clone(),
        id: id.clone(),
    });
    ResultPage { rows: rows.into_iter().map(|(_, row)| row).collect(), next, total }
}

/// Returns a time as a text that sorts chronologically.
pub(crate) fn time_key(at: Timestamp) -> String {
    // The flipped sign bit makes times before 1970 come first.
    format!("{:016x}", at.millis().cast_unsigned() ^ (1 << 63))
}
