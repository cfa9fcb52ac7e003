//! Programs and processes of the machine on which the lab runs.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `tools` | the search for required programs and files |
//! | `command` | running one program |
//! | `process` | process identity: ID and start time |
//! | `wait` | waiting with a deadline |

pub(crate) mod command;
pub(crate) mod process;
pub(crate) mod tools;
pub(crate) mod wait;
