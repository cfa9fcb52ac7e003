//! Handling of an incoming request: listener, caller, correlation ID, idempotency key.
//!
//! | module | content |
//! | --- | --- |
//! | `auth` | the caller: the user at the socket, or an API token |
//! | `connection` | a connection that ends when its caller loses the right to it |
//! | `https` | the HTTPS listener |
//! | `idempotency` | executes an order with an idempotency key once |
//! | `in_process` | WebSockets for the web UI in this process |
//! | `authorise_and_audit` | correlation ID, reason and audit record of an order |
//! | `socket` | the Unix socket |

pub(crate) mod auth;
pub(crate) mod authorise_and_audit;
pub(crate) mod connection;
pub(crate) mod https;
pub(crate) mod idempotency;
pub(crate) mod in_process;
pub(crate) mod socket;
