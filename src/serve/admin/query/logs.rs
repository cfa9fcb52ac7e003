//! Parameters of the event log and the audit log.

use super::parameters::{ListSpec, ParameterError, Parameters};

/// Default number of records.
const DEFAULT_RECORDS: usize = 100;
/// Maximum number of records per response.
pub(crate) const MAX_RECORDS: usize = 10_000;

/// Fields and orders of `GET /v1/events`.
pub(crate) const EVENTS: ListSpec = ListSpec {
    fields: &[
        "seq",
        "at",
        "kind",
        "node",
        "session",
        "actor",
        "detail",
        "by",
        "correlation_id",
        "reason",
        "stage",
        "from",
        "to",
        "condition",
        "count",
        "first_at",
    ],
    sorts: &["seq"],
};

/// Fields and orders of `GET /v1/audit`.
pub(crate) const AUDIT: ListSpec = ListSpec {
    fields: &[
        "seq",
        "at",
        "actor",
        "verb",
        "reason",
        "forced",
        "correlation_id",
        "target",
        "node",
        "outcome",
        "detail",
        "count",
        "first_at",
    ],
    sorts: &["seq"],
};

/// Read order of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Returns the newest records in ascending order, without pages.
    Newest,
    /// Reads from the oldest record; a page continues after a number.
    Forward,
    /// Reads from the newest record backwards; a page continues before a number.
    Backward,
}

/// Requested part of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRequest {
    pub(crate) direction: Direction,
    /// Number at which the response continues.
    pub(crate) after: Option<u64>,
    pub(crate) limit: usize,
}

impl LogRequest {
    /// Reads the parameters.
    pub(crate) fn read(parameters: &Parameters, spec: &ListSpec) -> Result<Self, ParameterError> {
        let direction = match parameters.sort(spec)? {
            None => Direction::Newest,
            Some(sort) if sort.descending => Direction::Backward,
            Some(_) => Direction::Forward,
        };
        let limit = match parameters.number("limit")? {
            None => DEFAULT_RECORDS,
            Some(number) => usize::try_from(number)
                .ok()
                .filter(|limit| (1..=MAX_RECORDS).contains(limit))
                .ok_or_else(|| {
                    ParameterError::invalid(
                        "limit",
                        format!("{number} is out of range"),
                        format!("use 1 to {MAX_RECORDS}"),
                    )
                })?,
        };
        Ok(LogRequest { direction, after: parameters.number("after")?, limit })
    }

    /// Returns the number of records to read: one more than a page, which shows whether another
    /// page follows.
    pub(crate) fn records(&self) -> usize {
        if self.direction == Direction::Newest { self.limit } else { self.limit + 1 }
    }

    /// Returns the first number to read, and the number before which reading ends.
    pub(crate) fn range(&self) -> (u64, Option<u64>) {
        match self.direction {
            Direction::Backward => (0, self.after),
            Direction::Newest | Direction::Forward => {
                (self.after.map_or(0, |after| after.saturating_add(1)), None)
            }
        }
    }

    /// Cuts the page out of records in ascending order. Also returns the number at which the next
    /// page continues.
    pub(crate) fn cut<T>(&self, mut records: Vec<(u64, T)>) -> (Vec<(u64, T)>, Option<u64>) {
        if self.direction == Direction::Newest {
            return (records, None);
        }
        if self.direction == Direction::Backward {
            records.reverse();
        }
        let more = records.len() > self.limit;
        records.truncate(self.limit);
        let next = records.last().filter(|_| more).map(|(number, _)| *number);
        (records, next)
    }
}
