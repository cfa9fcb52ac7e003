//! The connection to the central node.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_log` | the log of this boot: kernel messages and system log |
//! | `call` | POST and WebSocket over TLS; the agent only dials out |
//! | `forward` | forwards output and logs, one acknowledged piece at a time |
//! | `keys` | the node's private key and its certificate |

pub(crate) mod boot_log;
pub mod call;
pub(crate) mod forward;
pub mod keys;
