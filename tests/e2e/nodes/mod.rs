//! Nodes over several boots, and nodes with failing parts.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `failing` | an unreadable sector, a hanging disk, a service that dies |
//! | `power` | a machine that is off is powered on by its BMC |
//! | `identity` | two machines with the same UUID, a power cycle, another NIC, removal and return |

mod failing;
mod identity;
mod power;
