//! Handlers of nodes.
//!
//! | module | routes |
//! | --- | --- |
//! | `bmc_reports` | sensors, event log and firmware, by the BMC of a node |
//! | `list` | the list of nodes |
//! | `detail` | one node, the timeline of a boot, and where its time goes |
//! | `machines` | machines that have not booted yet |
//! | `pci_names` | names of PCI devices |
//! | `orders` | orders to one node and to several |
//! | `series` | time series of a node |
//! | `shell` | shells of nodes |
//! | `single_orders` | orders that only one node takes |

mod bmc_reports;
pub(crate) mod detail;
mod list;
mod machines;
mod orders;
mod pci_names;
mod series;
pub(crate) mod shell;
mod single_orders;

use super::{generations, stored_logs};
use crate::admin::bind_handlers::Binder;
use meshd_api::routes as api;

pub(crate) fn bind(binder: Binder) -> Binder {
    let binder = binder
        .get(&api::LIST_NODES, list::nodes)
        .get(&api::GET_NODE, detail::node)
        .get(&api::GET_NODE_TIMELINE, detail::timeline)
        .get(&api::GET_NODE_BOOT_TIMES, detail::boot_times)
        .get(&api::LIST_NODE_SERIES, series::node_series)
        .get(&api::GET_NODE_LOG, stored_logs::boot_log)
        .get(&api::LIST_NODE_GENERATIONS, generations::history)
        .get(&api::COMPARE_NODE_GENERATIONS, generations::diff);
    let binder = shell::bind(single_orders::bind(binder));
    bmc_reports::bind(machines::bind(orders::bind(binder)))
}
