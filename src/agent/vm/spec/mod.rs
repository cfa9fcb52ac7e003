//! From a specification to QEMU's arguments. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `plan` | specification and resources of the node ─▶ plan, or every reason against it |
//! | `argv` | plan ─▶ arguments of QEMU and qemu-img |

pub mod argv;
pub mod plan;
