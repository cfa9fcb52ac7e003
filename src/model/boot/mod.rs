//! Boot decision: (site, image, node, request) -> boot plan or refusal -> iPXE script. Pure.
//!
//! The same input gives the same bytes. [`ScriptRequest`] holds the parameters that iPXE sends about its
//! machine; [`decide`] returns a [`BootPlan`] or a [`Refusal`]; [`boot_script`] and [`refusal_script`] write the script. A
//! refusal is also a script: it states the reason, waits and retries. [`BootQueue`] limits how many machines
//! load at once.

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

/// Where nodes reach the boot API: the server address of the segment on which their request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Server address that nodes receive.
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
