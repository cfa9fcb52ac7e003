//! Orders of operators about nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `admission` | approve, release |
//! | `bmc` | the BMC of a node: power state, sensors, serial console, and its log |
//! | `boot_settings` | profile, variables, pinned generation, override for the next boot |
//! | `drain` | stops new work; maintenance follows when no work is left |
//! | `error` | why an order is refused |
//! | `expected_machines` | machines that have not booted yet: import, removal |
//! | `fence` | confirms that a machine is off, so that its VMs may start elsewhere |
//! | `fleet` | reads of nodes and their boots |
//! | `lifecycle` | changes of service, removal; replace, revoke, accept a NIC |
//! | `naming` | labels and names; finds a node by name |
//! | `operations` | every order that one or several nodes take, as records |
//! | `rollouts` | planned changes of many nodes, as records |
//! | `operator_kernel_args` | kernel arguments that a role may order for one boot |
//! | `setting_changes` | changes of one node's boot settings, in a transaction |

mod admission;
mod bmc;
mod boot_settings;
mod drain;
mod error;
mod expected_machines;
mod fence;
mod fleet;
mod lifecycle;
mod naming;
pub(crate) mod operations;
mod operator_kernel_args;
pub(crate) mod rollouts;
mod setting_changes;

pub(crate) use drain::drain_entry_of;
pub use error::{NamingError, OperateError, OrderError};
pub use expected_machines::{ImportOptions, ImportReport};
pub use fleet::{ComparedBoot, Fleet, NodeRecords};
pub use operations::{
    AcceptedOrder, BATCH, BulkError, CancelError, MAX_ANSWERED, MAX_BULK, NodeResults,
};
pub use rollouts::{
    BisectionRequest, NodeGroup, PlannedRollout, RolloutError, RolloutRequest, Rollouts,
};

use super::{
    boot::BootService,
    containers::Containers,
    enrolment::Enrolment,
    environment::{Environment, bmcs::Bmcs},
    generations::Generations,
    links::Links,
    tasks::Tasks,
    vms::Vms,
};
use std::sync::Arc;

/// Executes the orders of operators about nodes.
pub struct NodeOps {
    pub(super) env: Arc<Environment>,
    pub(super) links: Arc<Links>,
    pub(super) enrolment: Arc<Enrolment>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) vms: Arc<Vms>,
    pub(super) containers: Arc<Containers>,
    pub(super) generations: Arc<Generations>,
    pub(super) boot: Arc<BootService>,
    pub(super) bmcs: Arc<Bmcs>,
    pub(super) active: operations::ActiveOperations,
}
