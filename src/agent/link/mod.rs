//! The connection to the central node.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `call` | TLS, one POST, or a WebSocket; the agent only dials out |
//! | `keys` | the node's private key and its certificate |

pub mod call;
pub mod keys;
