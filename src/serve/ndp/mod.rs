//! IPv6 neighbour discovery: announces that meshd is not an IPv6 router, so that firmware does not wait for one.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `message` | the two ICMPv6 messages; pure |
//! | `run` | one raw socket for each interface |
//!
//! iPXE asks for an IPv6 router before its first request and waits 13 to 18 seconds, although DHCP gave it everything (seen with iPXE
//! 1.21.1 as a BIOS ROM and as snponly.efi). An advertisement with lifetime 0, "not a default router" (RFC 4861 section 6.2.5), ends the
//! wait within 0.1 s. It goes to the sender of the solicitation only. It describes meshd's host alone, so other routers stay in use. A host
//! that forwards IPv6 stays silent, because its own routing daemon answers.

mod message;
mod run;

pub use message::{ADVERTISEMENT, is_solicitation};
pub use run::run;
