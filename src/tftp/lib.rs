//! A TFTP server for network boot, without I/O in its engine.
//!
#![doc = include_str!("README.md")]
//!
//! # Modules
//!
//! | module | content |
//! | --- | --- |
//! | [`client`] | a client, and the Ethernet source of its packets |
//! | `packet` | packets as bytes: requests, acknowledgements, errors, block headers |
//! | `negotiation` | block size, window and timeout of one transfer, within the server's limits |
//! | `transfer` | one transfer as a state machine: windows, retransmission, backoff, minimum rate |
//! | [`engine`] | all transfers of one worker: limits, and which transfer is evicted when the table is full |
//! | [`effect`] | outputs of the engine: datagrams, completed files, events |
//! | [`files`] | traits of the user: file look-up ([`Files`]), observation ([`Observer`]), Ethernet ([`EthernetLink`]) |
//! | [`driver`] | sockets and threads: request port, workers, batched I/O, adaptive polling |
//! | `fuzz_invariants` | checks the engine's invariants for arbitrary input; used by fuzz targets |
//!
//! Everything but [`driver`] is pure: no clock, no sockets, no threads.

pub mod client;
pub mod driver;
pub mod effect;
pub mod engine;
pub mod files;
mod fuzz_invariants;
mod negotiation;
mod packet;
mod transfer;

#[cfg(test)]
mod tests;

pub use client::{Client, Origin};
pub use driver::{Sockets, TftpError, serve};
pub use effect::{Effects, Event, Refusal};
pub use engine::{Engine, Limits};
pub use files::{Datagram, EthernetLink, Files, Observer, Problem};
pub use fuzz_invariants::check_invariants;
pub use negotiation::{MAX_BLOCK, MAX_WINDOW};
