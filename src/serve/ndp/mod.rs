//! IPv6 neighbour discovery: tells whoever asks that meshd is no IPv6 router, and that there is nothing to wait for.
//!
//! iPXE asks for an IPv6 router before its first request and waits 13 to 18 seconds for one, although all that it needs came by
//! DHCP (seen with iPXE 1.21.1 as a BIOS ROM and as snponly.efi). An advertisement with lifetime 0, "not a default router" (RFC 4861
//! section 6.2.5), ends the wait within 0.1 s. It goes to the one that asked, and a router that there is keeps its place: it
//! speaks for the sender alone. A host that forwards IPv6 stays silent here, for then it may be a router, and its own daemon speaks.

mod message;
mod run;

pub use message::{ADVERTISEMENT, is_solicitation};
pub use run::run;
