//! Loaders: each renders plans and refusals as text that it can run.
//!
//! | module | content |
//! | --- | --- |
//! | `ipxe` | scripts for iPXE |
//! | `ipxe_quote` | quotes values in iPXE scripts |
//!
//! A further loader is one file beside `ipxe` and one variant of [`Loader`].

mod ipxe;
mod ipxe_quote;

use super::{boot_plan::BootPlan, endpoint::Endpoint, refusal::Refusal};
use meshd_types::NodeId;

/// A program that loads the kernel of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    Ipxe,
}

impl Loader {
    /// Returns the script that DHCP announces, the same for every machine of a segment.
    pub fn entry_script(self, endpoint: Endpoint) -> String {
        match self {
            Loader::Ipxe => ipxe::entry_script(endpoint),
        }
    }

    /// Returns the script that boots a node. It contains the capability of the overlay: never log
    /// or cache it.
    pub fn boot_script(self, plan: &BootPlan) -> String {
        match self {
            Loader::Ipxe => ipxe::boot_script(plan),
        }
    }

    /// Returns the script that shows a refusal and retries. `correlation` identifies the event in
    /// the log.
    pub fn refusal_script(
        self,
        refusal: &Refusal,
        endpoint: Endpoint,
        node: Option<NodeId>,
        correlation: &str,
    ) -> String {
        match self {
            Loader::Ipxe => ipxe::refusal_script(refusal, endpoint, node, correlation),
        }
    }

    /// Returns the kernel arguments that the loader needs itself.
    pub(super) fn kernel_args(self, plan: &BootPlan) -> Vec<String> {
        match self {
            Loader::Ipxe => ipxe::kernel_args(plan),
        }
    }

    /// Returns the maximum length of what the loader puts before the command line, in bytes.
    pub(super) fn line_prefix(self) -> usize {
        match self {
            Loader::Ipxe => ipxe::LINE_PREFIX,
        }
    }

    /// Returns whether a kernel argument can stand in a script unchanged.
    pub(super) fn is_word(self, arg: &str) -> bool {
        match self {
            Loader::Ipxe => ipxe_quote::is_ipxe_word(arg),
        }
    }
}
