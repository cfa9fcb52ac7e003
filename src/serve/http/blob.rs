//! Conditional and range requests for blobs (RFC 9110, 13 and 14). This module performs no I/O.

use axum::http::{HeaderMap, header};

/// The part of a blob to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The client has the blob (304).
    NotModified,
    /// The whole blob (200).
    Whole,
    /// A range of bytes, inclusive (206).
    Part(usize, usize),
    /// A range beyond the end (416).
    Unsatisfiable,
}

/// Evaluates the headers of a GET request for a blob of `len` bytes with this quoted entity tag.
///
/// One range is supported. Several ranges and malformed ones select the whole blob, as the RFC
/// allows.
pub fn select(headers: &HeaderMap, etag: &str, len: usize) -> Selection {
    if matches_any(headers, etag) {
        return Selection::NotModified;
    }
    // The client has a part of another version; joining them would corrupt the file.
    if headers.get(header::IF_RANGE).is_some_and(|value| value.as_bytes() != etag.as_bytes()) {
        return Selection::Whole;
    }
    let mut ranges = headers.get_all(header::RANGE).iter();
    match (ranges.next().map(|range| range.to_str().ok()), ranges.next()) {
        (Some(Some(range)), None) => select_range(range, len),
        _ => Selection::Whole,
    }
}

fn matches_any(headers: &HeaderMap, etag: &str) -> bool {
    let tags =
        headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = tags.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

fn select_range(range: &str, len: usize) -> Selection {
    let unit = range.split_once('=').filter(|(unit, _)| unit.trim().eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = unit.and_then(|(_, range)| range.trim().split_once('-')) else {
        return Selection::Whole;
    };
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => Selection::Whole,
        (Some(first), _) if first >= len => match number(last).is_some() || last.is_empty() {
            true => Selection::Unsatisfiable,
            false => Selection::Whole,
        },
        (Some(first), Some(last)) => Selection::Part(first, last.min(len - 1)),
        (Some(first), None) if last.is_empty() => Selection::Part(first, len - 1),
        (None, Some(0)) if first.is_empty() => Selection::Unsatisfiable,
        (None, Some(_)) if first.is_empty() && len == 0 => Selection::Unsatisfiable,
        (None, Some(suffix)) if first.is_empty() => {
            Selection::Part(len.saturating_sub(suffix), len - 1)
        }
        _ => Selection::Whole,
    }
}

/// Parses digits only; `parse` would accept a `+`. Numbers beyond usize exceed any blob.
fn number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ETAG: &str = "\"sha256-00\"";

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().filter_map(|(name, value)| Some((name.clone(), value.parse().ok()?))).collect()
    }

    #[test]
    fn single_range_is_served_and_other_ranges_get_whole_body() {
        use Selection::*;
        for (range, expected) in [
            ("bytes=0-3", Part(0, 3)),
            ("bytes=4-", Part(4, 9)),
            ("bytes=8-99", Part(8, 9)),
            ("bytes=9-9", Part(9, 9)),
            ("bytes=-3", Part(7, 9)),
            ("bytes=-99", Part(0, 9)),
            ("Bytes=0-0", Part(0, 0)),
            ("bytes=10-", Unsatisfiable),
            ("bytes=10-20", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=99999999999999999999999-", Unsatisfiable),
            ("bytes=3-1", Whole),
            ("bytes=-", Whole),
            ("bytes=0-1,3-4", Whole),
            ("bytes=+1-2", Whole),
            ("lines=0-1", Whole),
            ("junk", Whole),
        ] {
            assert_eq!(select(&headers(&[(header::RANGE, range)]), ETAG, 10), expected, "{range}");
        }
        assert_eq!(select(&headers(&[(header::RANGE, "bytes=-5")]), ETAG, 0), Unsatisfiable);
    }

    #[test]
    fn conditional_headers_take_precedence_over_ranges() {
        for tag in [ETAG, "*", "W/\"sha256-00\"", "\"a\", \"sha256-00\""] {
            let headers = headers(&[(header::IF_NONE_MATCH, tag), (header::RANGE, "bytes=0-1")]);
            assert_eq!(select(&headers, ETAG, 10), Selection::NotModified, "{tag}");
        }
        for (tag, expected) in [(ETAG, Selection::Part(0, 1)), ("\"old\"", Selection::Whole)] {
            let headers = headers(&[(header::IF_RANGE, tag), (header::RANGE, "bytes=0-1")]);
            assert_eq!(select(&headers, ETAG, 10), expected, "{tag}");
        }
    }

    proptest! {
        #[test]
        fn selected_range_lies_within_body(range in "bytes=[0-9]{0,3}-[0-9]{0,3}|\\PC{0,30}", len in 0usize..300) {
            if let Selection::Part(first, last) = select(&headers(&[(header::RANGE, &range)]), ETAG, len) {
                prop_assert!(first <= last && last < len);
            }
        }
    }
}
