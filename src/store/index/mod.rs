//! Indexes in memory, derived from the records and updated with them.
//!
//! | module | content |
//! | --- | --- |
//! | `containers` | containers, whose replicas share the allocations of VMs |
//! | `expected_machines` | expected machines by MAC address, name and address |
//! | `sessions` | retention of boot sessions |
//! | `operations` | operations by age, and the open ones of each node |
//! | `rollouts` | rollouts and their nodes, and the unfinished ones |
//! | `tasks` | tasks by state and by node |
//! | `vm_index` | VMs, slots, and the allocations of each node |
//! | `nic_index` | VM NICs by MAC address and by IP address |
//! | `dhcp_record_changes` | changes that a DHCP service needs |
//! | `range_set` | the next free IP address |
//! | `unavailable_units` | units of a node that cannot be allocated |
//! | `idempotency` | orders with an idempotency key |

pub(crate) mod containers;
pub(crate) mod expected_machines;
pub(crate) mod idempotency;
pub(crate) mod tasks;
pub(crate) mod dhcp_record_changes;
pub(crate) mod nic_index;
pub(crate) mod operations;
#[cfg(test)]
mod operations_tests;
pub(crate) mod range_set;
pub(crate) mod rollouts;
pub(crate) mod sessions;
pub(crate) mod unavailable_units;
pub(crate) mod vm_index;
