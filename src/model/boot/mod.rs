//! Step 4, boot: (site, image, node, request) -> what this machine boots, or why not; then the iPXE text of it.
//!
//! Everything here is pure: the same question has the same answer, byte for byte. [`ScriptRequest`] is what iPXE tells of its
//! machine; [`decide`] makes a [`BootPlan`] or a [`Refusal`] of it; [`boot_script`] and [`refusal_script`] write them down. A
//! refusal is a script too: it says why, waits, and asks again, so that no machine is ever stuck without a word. [`BootQueue`] says
//! whose turn it is when more machines come than can be loaded at once.

mod boot_queue;
mod plan;
mod quote;
mod refusal;
mod request;
mod script;
#[cfg(test)]
mod tests;

pub use boot_queue::{BootQueue, MachineState, QueueAnswer};
pub use plan::{
    Ask, BootPlan, Fetches, ImageParts, NoProfile, OverlayUrl, What, choose, decide, effective_profile, kernel_args,
};
pub use refusal::Refusal;
pub use request::{QueryError, ScriptRequest};
pub use script::{boot_script, entry_script, refusal_script};

use std::net::Ipv4Addr;

/// Where nodes reach the boot plane: the address of the segment that their request came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// What nodes are told.
    pub address: Ipv4Addr,
    /// TCP port of `[http]`.
    pub http_port: u16,
}

impl Endpoint {
    /// `http://address:port`, without a slash at the end.
    pub fn http(&self) -> String {
        format!("http://{}:{}", self.address, self.http_port)
    }

    /// `tftp://address`, without a slash at the end; the port is always 69.
    pub fn tftp(&self) -> String {
        format!("tftp://{}", self.address)
    }

    /// The URL that DHCP gives to iPXE, and that every script comes back to.
    pub fn entry(&self) -> String {
        format!("{}/boot.ipxe", self.http())
    }
}
