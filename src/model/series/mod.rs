//! Time series: a sample a minute for a day, and a mean an hour for 90 days at most.
//!
//! | module | content |
//! | --- | --- |
//! | `history` | the samples of several series, bounded, and their means over a range |
//! | `node_series` | the series of a node, and their values as codes of one byte |
//! | `node_table` | codes of many nodes in one interval, as a file |
//! | `packed_codes` | a row of codes in few bits |
//! | `series_frames` | samples as bytes, each with a check; damaged ones are skipped |
//! | `site_series` | the series of the site: names, units, and the values of one minute |
//!
//! Clocks jump. A sample is stored with the time of its clock and stays where it was added: bounds
//! count samples and never compare times. So a clock that was years ahead for a minute removes
//! nothing and fills no gap, and its samples are outside of every range that a reader asks for.

mod history;
mod node_series;
mod node_table;
mod packed_codes;
mod series_frames;
mod site_series;

pub use history::{
    HOUR, MAX_POINTS, MINUTE, SampleRow, SeriesHistory, SeriesPoint, SeriesRange, SeriesStep,
    points,
};
pub use node_series::{NODE_SERIES, NodeCodes, NodeSeries, UNKNOWN, usage_codes};
pub use node_table::{
    MAX_TABLE_NODES, NodeTable, RecordPlace, TABLE_HEAD, find_record, index_length, unpack_record,
};
pub use series_frames::{SeriesFrame, read_frames, write_names, write_row, write_usage};
pub use site_series::{SITE_SERIES, SeriesSpec, SiteSample, nearest_rank};
