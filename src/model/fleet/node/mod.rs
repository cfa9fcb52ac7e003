//! Nodes: record, identity and life cycle.
//!
//! | module | content |
//! | --- | --- |
//! | `record` | what the central node knows of a node |
//! | `phase` | phases of a node and the transitions between them |
//! | `transitions` | orders and timeouts: their effect on a node beside its phase |
//! | `condition` | faults of a node beside its phase |
//! | `identity` | identifies the machine that asks, and detects conflicting machines |
//! | `approval_rules` | rules of the site that approve machines without an operator |
//! | `certificate` | certificates of a node |
//! | `label` | labels of a node: `key=value` |
//! | `selector` | selects nodes by labels, names and beginnings of names |
//! | `relay_port` | switch port behind a DHCP relay |
//! | `readiness` | whether the checks of a node belong to its current boot |
//! | `unit_map` | units that a node was approved with, compared with those that it has |

pub mod approval_rules;
pub mod certificate;
pub mod condition;
pub mod identity;
pub mod label;
pub mod phase;
pub mod readiness;
pub mod record;
pub mod relay_port;
pub mod selector;
pub mod transitions;
pub mod unit_map;
