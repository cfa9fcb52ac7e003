//! Nodes: record, identity and life cycle.
//!
//! | module | content |
//! | --- | --- |
//! | `record` | the record of a node |
//! | `phase` | phases of a node and the transitions between them |
//! | `transitions` | effects of orders and timeouts on a node |
//! | `condition` | faults of a node, independent of its phase |
//! | `identity` | identifies a machine by its boot script request, and detects conflicting machines |
//! | `approval_rules` | rules of the site that approve machines without an operator |
//! | `certificate` | certificates of a node |
//! | `label` | labels of a node: `key=value` |
//! | `node_search` | finds nodes by ID, name, beginning or hostlist |
//! | `severity` | how urgently a node needs an operator |
//! | `selector` | selects nodes by labels |
//! | `relay_port` | switch port behind a DHCP relay |
//! | `check_validity` | verifies that the checks of a node belong to its current boot |
//! | `unit_map` | compares the units of a node with its approved units |

pub mod approval_rules;
pub mod certificate;
pub mod condition;
pub mod identity;
pub mod label;
pub mod node_search;
pub mod phase;
pub mod check_validity;
pub mod record;
pub mod relay_port;
pub mod selector;
pub mod severity;
pub mod transitions;
pub mod unit_map;
