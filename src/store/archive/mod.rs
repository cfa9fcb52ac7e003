//! Files beside the journal: large contents that the records name.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `generation_archive` | contents of generations, by digest |
//! | `revisions` | contents of profile revisions |
//! | `output` | output of tasks |

pub(crate) mod generation_archive;
pub(crate) mod output;
pub(crate) mod revisions;
