//! Output for people and programs.
//!
//! | module | content |
//! | --- | --- |
//! | `print` | one value as a table, JSON or YAML |
//! | `progress` | progress of builds |
//! | `failure` | the error of a command: object, cause, hint, exit code |

pub(crate) mod failure;
pub(crate) mod print;
pub(crate) mod progress;
