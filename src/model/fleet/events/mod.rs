//! The event log and the audit log.
//!
//! | module | content |
//! | --- | --- |
//! | `event` | events: actor, kind, time, cause |
//! | `audit` | audit records of orders, refused orders included |
//! | `audit_context` | caller and reason of an order |
//! | `cause` | the cause of an event: an actor or an order |
//! | `idempotency` | stored answers of orders with an idempotency key |

pub mod audit;
pub mod audit_context;
pub mod cause;
pub mod event;
pub mod idempotency;
