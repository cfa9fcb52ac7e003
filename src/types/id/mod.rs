//! IDs of nodes, boot sessions, tasks and requests.
//!
//! | module | content |
//! | --- | --- |
//! | `node` | the node ID, derived from hardware |
//! | `random` | random IDs of boot sessions, tasks and requests |

pub(crate) mod node;
pub(crate) mod random;
