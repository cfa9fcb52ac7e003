//! Pages of changes of many nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `bisections` | searches for the first bad generation |
//! | `operations` | orders to nodes, and unfinished work |
//! | `progress` | bars and numbers of changes of many nodes |
//! | `rollouts` | planned changes of many nodes |

pub(super) mod bisections;
pub(super) mod operations;
mod progress;
pub(super) mod rollouts;
