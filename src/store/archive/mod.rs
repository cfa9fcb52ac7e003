//! Files beside the journal: large contents that the records name.
//!
//! | module | content |
//! | --- | --- |
//! | `generation_archive` | contents of generations, by digest |
//! | `revisions` | contents of profile revisions |
//! | `chunk_log` | output of tasks and logs of boots |

pub(crate) mod generation_archive;
pub(crate) mod chunk_log;
pub(crate) mod revisions;
