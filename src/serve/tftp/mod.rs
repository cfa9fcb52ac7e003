//! TFTP: firmware fetches iPXE, and where nothing else is let through the kernel too.
//!
//! [`table`] says what can be had and under which name; [`handler`] hands it to async-tftp, which speaks the protocol
//! (RFC 1350, 2347 to 2349, 7440) and opens a socket for each transfer; [`run`] drives. There are no paths here: a name is in
//! the table, or it is nothing.
//!
//! Limits of async-tftp 0.4, which an engine of our own will lift:
//! - a client's ERROR is not heard. One that aborts after its size probe, as firmware does, keeps its transfer until
//!   [`run::MAX_RETRIES`] timeouts have passed; it holds one socket, one of [`handler::MAX_TRANSFERS`], and one block;
//! - sockets of transfers are bound to the segment's address, not to its device; the listening one is bound to both;
//! - answers to write requests and unknown names are sent from a fresh port, once;
//! - the mode `netascii` is taken for `octet`.

mod handler;
mod run;
mod table;

#[cfg(test)]
mod tests;

pub use handler::MAX_TRANSFERS;
pub use run::{Bound, MAX_BLOCK, MAX_WINDOW, TftpError, bind, run};
pub use table::Table;
