//! The event log and the audit log.
//!
//! | module | content |
//! | --- | --- |
//! | `event` | events: who, what, why, when |
//! | `audit` | audit records of orders, refused orders included |
//! | `audit_context` | who gives an order, and why |
//! | `idempotency` | stored answers of orders with an idempotency key |

pub mod audit;
pub mod audit_context;
pub mod event;
pub mod idempotency;
