//! Files beside the journal: large contents that the records name.
//!
//! | module | content |
//! | --- | --- |
//! | `generation_archive` | contents of generations, by digest |
//! | `revisions` | contents of profile revisions |
//! | `chunk_log` | output of tasks and logs of boots |
//! | `series_log` | time series of the site |
//! | `node_series_log` | time series of nodes |
//! | `replace_file` | writes a file under another name, then renames it |
//! | `output_shares` | selects the lines that a log keeps, with a share for each node; pure |

pub(crate) mod generation_archive;
pub(crate) mod chunk_log;
pub(crate) mod node_series_log;
mod output_shares;
mod replace_file;
pub(crate) mod revisions;
pub(crate) mod series_log;
