//! Archives: those of sources are read into a tree, and a tree is written for GNU tar.
//!
//! | module | content |
//! | --- | --- |
//! | `pax` | records of extended headers |
//! | `read` | reads archives into a tree |
//! | `sparse` | sparse files of the format pax |
//! | `write` | writes a tree as one archive |

mod pax;
pub(super) mod read;
mod sparse;
pub(super) mod write;
