//! TFTP: firmware fetches iPXE, and where nothing else is let through the kernel too.
//!
//! The engine is pure: [`packet`] reads and writes bytes, [`negotiation`] are what a client and we agree on, [`transfer`] is one
//! transfer, [`engine`] all of one worker; what it wants done are [`effect`]s. The rest drives it: [`run`] binds and hands
//! requests to [`worker`]s, a thread each, with one [`socket`] that its transfers share. [`table`] says what can be
//! had and under which name. There are no paths here: a name is in the table, or it is nothing.
//!
//! RFC 1350, 2347, 2348, 2349, 7440. Only reading, only octets.

mod effect;
mod engine;
mod exercise;
mod telemetry;
mod packet;
mod adaptive_polling;
mod run;
mod socket;
mod table;
mod negotiation;
mod transfer;
mod worker;

#[cfg(test)]
mod tests;

pub use exercise::exercise;
pub use negotiation::{MAX_BLOCK, MAX_WINDOW};
pub use run::{Bound, TftpError, bind, run};
pub use table::Table;
