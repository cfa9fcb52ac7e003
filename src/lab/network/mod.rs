//! The rack's network.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `namespace` | the network namespace of a rack |
//! | `bridge` | the bridge and the taps of the nodes |
//! | `neighbour` | machines that are no nodes: other DHCP servers, relays |

pub(crate) mod bridge;
pub(crate) mod namespace;
pub(crate) mod neighbour;
