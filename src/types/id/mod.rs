//! IDs of nodes, boot sessions, tasks and requests.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `node` | the node ID, derived from hardware |
//! | `session` | the ID of a boot session |
//! | `job` | the ID of a task |
//! | `correlation` | the ID that ties a request to its answer, log lines, events and audit line |

pub(crate) mod correlation;
pub(crate) mod job;
pub(crate) mod node;
pub(crate) mod session;
