//! The rack's network.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `namespace` | the network namespace of a rack |
//! | `bridge` | the bridge and the taps of the nodes |

pub(crate) mod bridge;
pub(crate) mod namespace;
