//! Handling of an incoming request: listener, caller, correlation ID, idempotency key.
//!
//! | module | content |
//! | --- | --- |
//! | `auth` | finds the caller of a request by its API token |
//! | `caller` | the caller of a request, and its role |
//! | `connection` | a connection that ends when its caller loses the right to it |
//! | `https` | the HTTPS listener |
//! | `idempotency` | executes an order with an idempotency key once |
//! | `in_process` | WebSockets for the web UI in this process |
//! | `authorise_and_audit` | correlation ID, reason and audit record of an order |
//! | `socket` | the Unix socket |

pub(crate) mod auth;
pub(crate) mod authorise_and_audit;
pub(crate) mod caller;
pub(crate) mod connection;
pub(crate) mod https;
pub(crate) mod idempotency;
pub(crate) mod in_process;
pub(crate) mod socket;
