//! Placement: chooses the node and the devices of a VM, or explains why no node takes it. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `node_choice` | filters and ranks the nodes |
//! | `candidate` | a node as the scheduler sees it, and the result |
//! | `feature_filter` | programs, firmware, bridges and CPU models |
//! | `capacity_filter` | CPUs, memory and huge pages, also per NUMA node |
//! | `device_selector` | assigns a unit to each device selector |
//! | `slot_resources` | disk, fabric device and NIC addresses that belong to a slot |
//! | `allocations` | resources of a node that VMs hold |
//! | `explain` | every reason against a node, and the verdict over all nodes |
//! | `reject_reason` | the table of reasons |

pub mod allocations;
pub mod candidate;
pub mod capacity_filter;
pub mod device_selector;
pub mod explain;
pub mod feature_filter;
pub mod reject_reason;
pub mod node_choice;
pub mod slot_resources;

#[cfg(test)]
#[path = "tests/fixtures.rs"]
pub(crate) mod fixtures;
#[cfg(test)]
#[path = "tests/many_nodes.rs"]
mod many_nodes;
