//! Programs and processes of the host on which the lab runs.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `command` | running one program |
//! | `process` | process identity: ID and start time |
//! | `wait` | waiting with a deadline |

pub(crate) mod command;
pub(crate) mod process;
pub(crate) mod wait;
