//! VMs: their records, placement, slots, volumes and consoles.
//!
//! | module | content |
//! | --- | --- |
//! | `console_sessions` | connects an operator to the console of a VM; `serve` carries the bytes |
//! | `disk_records` | audit records of disks that are written or wiped |
//! | `error` | errors of orders about VMs |
//! | `guest_shells` | shells of guests for administrators |
//! | `running_work_guard` | refuses orders that would end or lose the work of a node |
//! | `failover` | frees the VMs of a node that is fenced or removed, and places them elsewhere |
//! | `nics` | MAC and IP addresses of virtual NICs |
//! | `placement_candidates` | describes nodes as candidates of placement |
//! | `start_checks` | checks that a placed VM may start |
//! | `renamed_node` | moves the work of a node to its new ID |
//! | `node_reports` | processes reports of nodes about their VMs |
//! | `slots` | approves, disables and releases slots |
//! | `lifecycle` | creates, starts, stops and deletes VMs |
//! | `volumes` | files of VMs: fetching and removal |

mod console_sessions;
mod disk_records;
mod error;
mod guest_shells;
mod running_work_guard;
mod failover;
mod nics;
mod placement_candidates;
mod start_checks;
mod renamed_node;
mod node_reports;
mod slots;
mod lifecycle;
mod volumes;

pub use console_sessions::ConsoleError;
pub use error::VmError;
pub(crate) use failover::{release_vms, remove_node_work};
pub use guest_shells::{GuestShellError, GuestShellRequest};
pub(crate) use lifecycle::vm_event;
pub use lifecycle::{VmVerb, vm_entries};
pub(crate) use node_reports::record_reboot;
pub(crate) use placement_candidates::candidate_nodes;
pub(crate) use renamed_node::{move_vms, move_work};
pub use running_work_guard::RunningWorkError;
pub(crate) use running_work_guard::{
    active_work, check_no_open_slots, check_no_running_work, check_no_task, check_no_work,
};
pub use slots::{SlotError, SlotParts};
pub(crate) use start_checks::may_run;
pub use volumes::{VolumeUseError, VolumeUsers};

use super::{environment::Environment, links::Links, locks::Leaf, reported_work::ReportedWork};
use meshd_types::Digest;
use std::{collections::BTreeSet, sync::Arc};

/// Maximum number of VMs of a site.
pub const MAX_SITE_VMS: usize = 20_000;

/// The VMs of the site: records, placement, files.
pub struct Vms {
    env: Arc<Environment>,
    links: Arc<Links>,
    reported: Arc<ReportedWork>,
    /// Read-locked while a VM with files is recorded; write-locked while a file is removed, or the
    /// list of files in use is shortened.
    volume_use: tokio::sync::RwLock<()>,
    /// Last declaration of volumes in use; `None` after a failed one.
    declared_volumes: Leaf<Option<BTreeSet<Digest>>>,
}

impl Vms {
    pub(super) fn new(
        env: Arc<Environment>,
        links: Arc<Links>,
        reported: Arc<ReportedWork>,
    ) -> Self {
        Vms {
            env,
            links,
            reported,
            volume_use: tokio::sync::RwLock::default(),
            declared_volumes: Leaf::default(),
        }
    }
}
