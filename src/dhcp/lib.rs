//! A DHCP server engine for network boot, without I/O.
//!
#![doc = include_str!("README.md")]
//!
//! # Modules
//!
//! | module | content |
//! | --- | --- |
//! | [`config`] | input: segments, subnets, reservations |
//! | [`nic_records`] | input: what is known of NICs, as a stream of changes |
//! | [`effect`] | output: replies, lease changes, client exchanges, segment status |
//! | [`warning`] | output: what an operator should know |
//! | [`packet`] | parses requests, builds replies, probes and Ethernet frames |
//! | [`lease`] | the lease table of a segment: offers, leases, declined and reserved addresses |
//! | [`engine`] | one packet through the server: rate limit, forged senders, segment, exchange |
//! | [`boot_file`] | which file or URL a client boots |
//! | [`client_arch`] | loaders by client architecture (option 93) |
//! | [`firmware_quirks`] | where firmware departs from the RFCs |
//! | `fuzz_invariants` | checks the engine's invariants for arbitrary input; used by fuzz targets |

pub mod boot_file;
pub mod client_arch;
pub mod config;
pub mod effect;
pub mod engine;
pub mod firmware_quirks;
mod fuzz_invariants;
pub mod lease;
pub mod nic_records;
pub mod packet;
pub mod warning;

#[cfg(test)]
mod tests;

pub use boot_file::{BootFile, BootSources, NoLoader};
pub use config::{DhcpMode, Interface, Link, Owner, Reservation, Segment, Setup, Subnet};
pub use effect::{
    Change, ClientExchange, Effect, LastHop, Lease, LeaseChange, OtherServer, Reply, ReplyKind,
    SegmentStatus,
};
pub use engine::{Counters, Engine};
pub use fuzz_invariants::check_invariants;
pub use lease::PoolUse;
pub use nic_records::{
    Attachment, MachineNic, NicRecord, RecordChange, RecordChanges, RelayPort, ReservedNic,
    UsedAddress,
};
pub use packet::{
    BmcClaim, ClientKind, ClientLink, ClientMessageType, Destination, Origin, VendorClass,
};
pub use warning::{DropReason, Warning};
