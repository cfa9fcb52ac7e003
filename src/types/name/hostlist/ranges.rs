//! The ranges between two brackets of a hostlist: `001-040,050,1-9/2`.

use crate::ParseError;

/// Maximum number of digits of a number: a number of 18 digits fits into 64 bits.
const MAX_DIGITS: usize = 18;

/// Numbers from `first` to `last`. A leading zero of the first number sets the width of all.
pub(super) struct Range {
    first: u64,
    last: u64,
    step: u64,
    width: usize,
}

impl Range {
    /// Returns how many numbers the range has.
    pub(super) fn count(&self) -> u64 {
        (self.last - self.first) / self.step + 1
    }

    /// Returns the numbers as text.
    pub(super) fn numbers(&self) -> impl Iterator<Item = String> {
        let Range { first, step, width, .. } = *self;
        (0..self.count()).map(move |index| format!("{:0width$}", first + index * step))
    }
}

/// Parses the text between two brackets of `term`.
pub(super) fn parse(term: &str, text: &str) -> Result<Vec<Range>, ParseError> {
    if text.trim().is_empty() {
        return Err(ParseError::of_text(term, "has empty brackets", "write gpu[001-040,050]"));
    }
    text.split(',').map(|range| parse_range(term, range.trim())).collect()
}

fn parse_range(term: &str, range: &str) -> Result<Range, ParseError> {
    let (ends, step) = match range.split_once('/') {
        Some((ends, step)) => (ends, number(term, range, step)?),
        None => (range, 1),
    };
    let (first, last) = ends.split_once('-').unwrap_or((ends, ends));
    let is_padded = |digits: &str| digits.len() > 1 && digits.starts_with('0');
    if is_padded(last) && last.len() != first.len() {
        let is_what = format!("has the range `{range}` with ends of different width");
        return Err(ParseError::of_text(term, &is_what, "write both with the same zeros: 001-040"));
    }
    let width = if is_padded(first) { first.len() } else { 0 };
    let first = number(term, range, first)?;
    let last = number(term, range, last)?;
    if first > last {
        let is_what = format!("has the range `{range}`, which runs backwards");
        return Err(ParseError::of_text(term, &is_what, "write the smaller number first"));
    }
    if step == 0 {
        let is_what = format!("has the range `{range}` with the step 0");
        return Err(ParseError::of_text(term, &is_what, "write a step from 1 on: 1-9/2"));
    }
    Ok(Range { first, last, step, width })
}

fn number(term: &str, range: &str, digits: &str) -> Result<u64, ParseError> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let is_what = format!("has `{range}`, which is no range of numbers");
        let hint = "brackets contain numbers such as [01-04,7]; a wildcard is * or ?";
        return Err(ParseError::of_text(term, &is_what, hint));
    }
    let parsed = digits.parse().ok().filter(|_| digits.len() <= MAX_DIGITS);
    parsed.ok_or_else(|| {
        let hint = format!("use at most {MAX_DIGITS} digits");
        ParseError::of_text(term, "has a number that is too long", hint)
    })
}
