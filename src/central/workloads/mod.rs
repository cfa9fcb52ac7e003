//! Virtual machines: their records, placement, slots, volumes and consoles.
//!
//! | module | content |
//! | --- | --- |
//! | `consoles` | connects an operator to the console of a virtual machine |
//! | `disk_records` | audit records of disks that are written or wiped |
//! | `running_work_guard` | refuses orders that would end or lose the work of a node |
//! | `lost_node` | frees the virtual machines of a node that is fenced or removed, and places them elsewhere |
//! | `nics` | MAC and IP addresses of virtual NICs |
//! | `placement` | describes nodes as candidates of placement |
//! | `readiness` | checks that a placed VM may start |
//! | `renamed_node` | moves the work of a node to its new ID |
//! | `node_reports` | processes reports of nodes about their VMs |
//! | `slots` | approves, disables and releases slots |
//! | `vms` | creates, starts, stops and deletes virtual machines |
//! | `volumes` | files of virtual machines: fetching and removal |

mod consoles;
mod disk_records;
mod running_work_guard;
mod lost_node;
mod nics;
mod placement;
mod readiness;
mod renamed_node;
mod node_reports;
mod slots;
mod vms;
mod volumes;

pub use consoles::{ConsoleError, ConsoleFrame, ConsoleSession, NodeConsole};
pub(crate) use lost_node::{release_vms, remove_node_work};
pub(crate) use node_reports::rebooted;
pub(crate) use renamed_node::{move_vms, move_work};
pub use running_work_guard::{RunningWorkError, active_work};
pub(crate) use running_work_guard::{check_no_running_work, check_no_task, check_no_work};
pub use slots::{SlotError, SlotParts};
pub(crate) use vms::vm_event;
pub use vms::{MAX_SITE_VMS, VmError, VmVerb};
pub use volumes::VolumeUseError;

use super::{environment::Environment, links::Links, locks::Leaf, orphan_workloads::OrphanWork};
use consoles::Consoles;
use node_reports::{Addresses, Fetching};
use std::sync::Arc;

/// Runs virtual machines on nodes.
pub struct Workloads {
    env: Arc<Environment>,
    links: Arc<Links>,
    orphans: Arc<OrphanWork>,
    consoles: Leaf<Consoles>,
    fetching: Leaf<Fetching>,
    addresses: Leaf<Addresses>,
    /// Read-locked while a VM with files is recorded; write-locked while a file is removed.
    volume_use: tokio::sync::RwLock<()>,
}

impl Workloads {
    pub(super) fn new(env: Arc<Environment>, links: Arc<Links>, orphans: Arc<OrphanWork>) -> Self {
        Workloads {
            env,
            links,
            orphans,
            consoles: Leaf::default(),
            fetching: Leaf::default(),
            addresses: Leaf::default(),
            volume_use: tokio::sync::RwLock::default(),
        }
    }
}
