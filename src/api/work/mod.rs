//! Requests and responses for the work of nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `container` | containers and their replicas |
//! | `container_options` | options of a container as people write and read them |
//! | `slot` | slots and their approval |
//! | `task` | tasks and their output |
//! | `vm` | VMs and VM templates |

pub(crate) mod container;
pub mod container_options;
pub(crate) mod slot;
pub(crate) mod task;
pub(crate) mod vm;
