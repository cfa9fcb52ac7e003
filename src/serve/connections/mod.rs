//! Connections of the APIs over TCP and Unix sockets.
//!
//! | module | content |
//! | --- | --- |
//! | `accept` | the loop of each listener: accepts, admits, serves, drains |
//! | `limiter` | connection limits of one API |
//! | `lingering_close` | closes connections without the loss of their last response |

pub(super) mod accept;
pub mod limiter;
pub mod lingering_close;
