//! Generations: everything public that determines a boot, by digest.
//!
//! | module | content |
//! | --- | --- |
//! | `generation` | the digest, and drift of a node from its profile |
//! | `archive` | contents of an archived generation, and the difference of two generations |
//! | `history` | generations that a node received and reported |
//! | `revision` | revisions of a profile |

pub mod archive;
pub mod generation;
pub mod history;
pub mod revision;
