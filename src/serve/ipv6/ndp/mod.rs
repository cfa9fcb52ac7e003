//! IPv6 neighbour discovery: answers router solicitations with "no router", so that iPXE does not
//! wait for one.
//!
//! iPXE solicits an IPv6 router before its first request and waits 13 to 18 seconds (seen with iPXE
//! 1.21.1 as BIOS ROM and snponly.efi). An advertisement with lifetime 0, "not a default router"
//! (RFC 4861 section 6.2.5), ends the wait within 0.1 s. It is sent to the solicitor only, or to all
//! nodes while many solicit. It does not affect real routers: an advertisement describes its sender
//! alone. A host that forwards IPv6 sends none, because it may be a router itself.
//!
//! | module | content |
//! | --- | --- |
//! | `message` | the two ICMPv6 messages; no I/O |
//! | `run` | raw sockets on one interface |

mod message;
mod run;

pub use message::{ADVERTISEMENT, is_solicitation};
pub use run::run;
