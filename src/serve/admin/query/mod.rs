//! Queries of lists: parameters, filters, order, cursors, selected fields, entity tags, and the search over everything.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `answer` | a list as an HTTP answer: selected fields, cursor, entity tag |
//! | `cursor` | the place in a list where the next page begins |
//! | `leases` | filters and order of leases |
//! | `logs` | parameters of the event log and the audit log |
//! | `nodes` | filters and order of the node list |
//! | `page` | sorts rows and cuts one page out of them |
//! | `parameters` | reads and checks query parameters |
//! | `search` | finds nodes, virtual machines and tasks by a part of a text |
//! | `text` | the text that is looked for |
//! | `work` | filters and order of virtual machines and tasks |
//!
//! Everything but `answer` is free of input and output: it works on values.

pub(crate) mod answer;
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
