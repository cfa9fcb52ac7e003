//! Commands that need neither a central node nor a site.
//!
//! | module | content |
//! | --- | --- |
//! | `completions` | shell completion scripts and manual pages |
//! | `id` | `meshd id`: computes the node ID of a machine |

pub(super) mod completions;
pub(super) mod id;
