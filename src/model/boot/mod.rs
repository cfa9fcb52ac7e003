//! Decides what a machine boots, or why it does not boot, from site, image, node and request.
//!
//! | module | content |
//! | --- | --- |
//! | `request` | the query of `GET /boot/script` |
//! | `plan` | kernel, initrds and overlay of a node |
//! | `profile_kernel_args` | kernel arguments of site and profile, and their checks; `plan` and `ipxe_script` add those of the boot chain |
//! | `refusal` | the reason why a machine does not boot now |
//! | `ipxe_script` | renders a plan or a refusal for iPXE |
//! | `failure` | the query of `GET /boot/failed` |
//! | `ipxe_quote` | quotes values in iPXE scripts |
//! | `boot_queue` | limits how many machines load at once |
//!
//! All functions are pure: equal inputs give equal scripts, byte for byte. A refusal is also a script: it shows the reason on the
//! machine's console, waits and retries.

mod boot_queue;
mod failure;
mod profile_kernel_args;
mod plan;
mod ipxe_quote;
mod refusal;
mod request;
mod ipxe_script;
#[cfg(test)]
mod tests;

pub use boot_queue::{BootQueue, MachineState, QueueAnswer};
pub use failure::BootFailure;
pub use ipxe_script::{boot_script, entry_script, refusal_script};
pub use plan::{
    BootContents, BootPlan, Fetches, ImageParts, NoProfile, OverlayUrl, PlanRequest, choose, decide, effective_profile,
};
pub use profile_kernel_args::kernel_args;
pub use refusal::Refusal;
pub use request::{QueryError, ScriptRequest};

use std::net::Ipv4Addr;

/// Address of the boot API for a node: the server address of the segment on which its request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Server address that nodes receive.
    pub address: Ipv4Addr,
    /// TCP port of `[http]`.
    pub http_port: u16,
}

impl Endpoint {
    /// Returns `http://address:port`, without a slash at the end.
    pub fn http(&self) -> String {
        format!("http://{}:{}", self.address, self.http_port)
    }

    /// Returns `tftp://address`, without a slash at the end; the port is always 69.
    pub fn tftp(&self) -> String {
        format!("tftp://{}", self.address)
    }

    /// Returns the URL that DHCP announces to iPXE, and to which every script returns.
    pub fn entry(&self) -> String {
        format!("{}/boot.ipxe", self.http())
    }
}
