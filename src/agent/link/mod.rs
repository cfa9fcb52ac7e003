//! The connection to the central node.
//!
//! | module | content |
//! | --- | --- |
//! | `acked_stream` | forwards output and logs, one acknowledged piece at a time |
//! | `boot_log` | the log of this boot: kernel messages and system log |
//! | `call` | POST and WebSocket over TLS; the agent never listens |
//! | [`files`] | files of the overlay: agent.json, boot.json with the token of this boot |
//! | `keys` | the node's private key and its certificate |
//! | `user_connection` | a connection of its own for the bytes of one user |
//! | `warm_boot` | loads the next boot, to start it by kexec |

pub(crate) mod acked_stream;
pub(crate) mod boot_log;
pub mod call;
pub mod files;
pub mod keys;
pub(crate) mod user_connection;
pub(crate) mod warm_boot;
