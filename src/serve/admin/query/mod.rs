//! Queries of lists: parameters, filters, order, cursors, selected fields, entity tags, and the
//! search over everything.
//!
//! | module | content |
//! | --- | --- |
//! | `answer` | converts a list to an HTTP response: selected fields, cursor, entity tag |
//! | `containers` | filters and order of containers |
//! | `cursor` | position of the next page in a list |
//! | `leases` | filters and order of leases |
//! | `logs` | parameters of the event log and the audit log |
//! | `nodes` | filters and order of the node list |
//! | `page` | sorts rows and cuts one page out of them |
//! | `parameters` | reads and checks query parameters |
//! | `search` | finds nodes, VMs, containers and tasks by a part of a text |
//! | `text` | the search text |
//! | `work` | filters and order of VMs and tasks |
//!
//! All modules except `answer` are free of input and output: they work on values.

pub(crate) mod answer;
pub(crate) mod containers;
pub(crate) mod cursor;
pub(crate) mod leases;
pub(crate) mod logs;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod parameters;
pub(crate) mod search;
pub(crate) mod text;
pub(crate) mod work;

#[cfg(test)]
mod tests;
