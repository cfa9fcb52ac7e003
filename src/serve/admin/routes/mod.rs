//! Handlers, by resource.
//!
//! | module | routes |
//! | --- | --- |
//! | `backup` | streaming of a backup |
//! | `catalog` | profiles, images, overlays |
//! | `dhcp` | segments and leases |
//! | `events` | the event log and the audit log |
//! | `generations` | history, diff, rollback, reload |
//! | `nodes` | nodes, and orders to them |
//! | `operations` | operations: orders to nodes, as records |
//! | `rollouts` | rollouts: planned changes of many nodes, and bisections |
//! | `site` | caller, status, findings, metrics, profiles, search, activities, time series |
//! | `stored_logs` | streaming of task output and boot logs |
//! | `tasks` | tasks and their output |
//! | `tokens` | API tokens |
//! | `trust` | certificate authority, tokens of nodes |
//! | `vms` | VMs, their consoles, slots and volumes; containers |

pub(crate) mod backup;
pub(crate) mod catalog;
pub(crate) mod dhcp;
pub(crate) mod events;
pub(crate) mod generations;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod rollouts;
pub(crate) mod site;
pub(crate) mod stored_logs;
pub(crate) mod tasks;
pub(crate) mod tokens;
pub(crate) mod trust;
pub(crate) mod vms;

use crate::admin::error::Refused;
use axum::{Json, http::StatusCode};

pub(crate) type Answer<T> = Result<Json<T>, Refused>;

/// Runs blocking work, such as reading files, outside the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    action: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    let interrupted = |_| {
        Refused::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "interrupted",
            format!("{action} was interrupted"),
        )
    };
    tokio::task::spawn_blocking(work).await.map_err(interrupted)
}
