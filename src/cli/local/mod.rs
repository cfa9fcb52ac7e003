//! Commands that need neither a central node nor a site.
//!
//! | module | content |
//! | --- | --- |
//! | `complete` | `meshd complete`: words that complete a command line, with names of nodes |
//! | `completions` | shell completion scripts and manual pages |
//! | `id` | `meshd id`: computes the node ID of a machine |

pub(super) mod complete;
pub(super) mod completions;
pub(super) mod id;
