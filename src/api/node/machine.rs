//! Expected machines: what an operator defines of a machine before it boots.

use meshd_model::fleet::{ExpectedMachine, MachineRow, RowFault};
use meshd_types::MacAddr;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `machines/import`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportMachines {
    /// The machines, each with `mac`, `name`, `address`, `profile`, `labels` (`key=value`, with
    /// blanks between), `serial`, `bmc_driver`, `bmc_address`, `bmc_mac`, and `line` for faults.
    pub machines: Vec<MachineRow>,
    /// True if the machines are approved when they appear.
    #[serde(default)]
    pub approve: bool,
    /// True to check the machines and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedMachines {
    /// Number of machines that were unknown.
    pub added: usize,
    /// Number of machines with other values than before.
    pub changed: usize,
    pub unchanged: usize,
    /// Faults for which meshd refused the import: `line`, `column`, `message`, `hint`. If `added` or
    /// `changed` is not 0, another order took a name or an address during the import: these machines
    /// are stored, and a repeated import completes the list.
    pub faults: Vec<RowFault>,
}

/// Body of `machines/remove`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveMachines {
    /// MAC addresses of the boot NICs.
    pub macs: Vec<MacAddr>,
}

/// An expected machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineView {
    /// Values of the machine; `node` is the node that it has become.
    #[serde(flatten)]
    pub machine: ExpectedMachine,
}
