//! Bodies of requests and answers. [`super::view`] lists all of them.
//!
//! | module | content |
//! | --- | --- |
//! | `bodies` | orders about nodes, and short answers |
//! | `profile_view` | a profile with everything that it inherits |
//! | `task_view` | tasks and their output |
//! | `timeline` | one boot, stage by stage |

pub(crate) mod bodies;
pub(crate) mod profile_view;
pub(crate) mod task_view;
pub(crate) mod timeline;
