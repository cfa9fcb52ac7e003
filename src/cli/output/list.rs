//! Options of commands that list things.

use super::print::{Format, Output, now, write};
use crate::cli::Failure;
use clap::Args;
use meshd_config::parse_duration;
use meshd_types::Timestamp;
use serde::Serialize;
use std::ops::Deref;

/// Records that a command shows without limits.
const DEFAULT_RECORDS: u16 = 100;
/// Maximum number of records of one request.
const MAX_RECORDS: u16 = 10_000;

/// Output options of a command that prints one table
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ListOutput {
    #[command(flatten)]
    output: Output,
    /// Omit the names of the columns
    #[arg(long)]
    no_headers: bool,
}

impl Deref for ListOutput {
    type Target = Output;

    fn deref(&self) -> &Output {
        &self.output
    }
}

impl ListOutput {
    /// Prints a value. Calls `table` only for the table format; its first line names the columns.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.output.format() {
            Format::Table if self.no_headers => write(without_head(&table(value))),
            _ => self.output.print(value, table),
        }
    }
}

fn without_head(table: &str) -> &str {
    table.split_once('\n').map_or("", |(_, rows)| rows)
}

/// Lower bound of the times of a list
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TimeFilter {
    /// Show newer ones only: 2h, or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
}

impl TimeFilter {
    /// Returns the number of records to read: the given one, else as many as meshd returns if the
    /// time limits them.
    pub(crate) fn limit(self, given: Option<u16>) -> u16 {
        given.unwrap_or(if self.since.is_some() { MAX_RECORDS } else { DEFAULT_RECORDS })
    }

    pub(crate) fn includes(self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since)
    }
}

/// Parses a time, or the span between it and now.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, String> {
    let span = parse_duration(text).map(|span| now().before(span));
    span.or_else(|| text.parse().ok()).ok_or_else(|| {
        "write a number and one of s, m, h, d, such as 2h, or 2026-01-31T12:00:00Z".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn time_is_a_span_before_now_or_absolute() {
        let hour = Duration::from_secs(3600);
        let before = now().before(hour);
        let found = parse_time("1h").unwrap();
        assert!(found >= before && found <= now().before(hour), "{found}");
        assert_eq!(parse_time("1970-01-01T00:00:01Z"), Ok(Timestamp::from_millis(1000)));
        assert!(parse_time("yesterday").is_err() && parse_time("").is_err());
        let filter = TimeFilter { since: Some(Timestamp::from_millis(5)) };
        assert!(filter.includes(Timestamp::from_millis(5)));
        assert!(!filter.includes(Timestamp::from_millis(4)));
    }

    #[test]
    fn table_without_head_has_its_rows_alone() {
        assert_eq!(without_head("ID  NAME\n1   a\n2   b\n"), "1   a\n2   b\n");
        assert_eq!(without_head(""), "");
    }
}
