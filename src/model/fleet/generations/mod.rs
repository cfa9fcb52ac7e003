//! Generations: everything public that determines a boot, by digest.
//!
//! | module | content |
//! | --- | --- |
//! | `generation` | the digest that identifies a generation |
//! | `next_boot` | the generation that a node would boot next, and drift of a node |
//! | `archive` | contents of an archived generation, and the difference of two generations |
//! | `history` | generations that a node received and reported |
//! | `revision` | revisions of a profile |

pub mod archive;
pub mod generation;
pub mod history;
pub mod next_boot;
pub mod revision;
