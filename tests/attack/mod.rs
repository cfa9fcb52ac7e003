//! What docs/security.md claims, tried as an attacker would: from an address of their own, over
//! real sockets, with what they found. Each line of that document names its test, and `house` holds
//! it to that.

mod arp_theft;
mod boot_lan;
mod boot_theft;
mod certificates;
pub mod client;
mod evidence;
mod node_reports;
mod planes;
mod relayed;
mod resources;
mod sessions;
mod takeovers;
mod tokens;
