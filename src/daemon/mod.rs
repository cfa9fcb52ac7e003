//! The daemon: builds services, binds all sockets, spawns tasks in the order of the boot chain, and
//! drains with a deadline.
//!
//! | module | content |
//! | --- | --- |
//! | `bind` | binds all sockets of all segments before any service starts |
//! | `build` | reads all files and builds all services before a socket is opened |
//! | `error` | why the central node does not run |
//! | `ipxe_loaders` | reads the iPXE programs that firmware loads |
//! | `open_file_limit` | the limit of open files, and the share of each API |
//! | `privileges` | drops privileges while the process has one thread, because later threads inherit capabilities |
//! | `reload` | reload: detects edited site files, overlays and secrets, and new images |
//! | `supervisor` | supervises all tasks: the first that ends stops the others |
//!
//! No service starts before all sockets are bound, so an occupied port ends the start with one
//! error. After a signal, or when a task ends, all tasks are stopped and joined, so that no panic
//! is lost.

mod bind;
mod build;
mod error;
mod ipxe_loaders;
mod open_file_limit;
mod privileges;
mod reload;
mod supervisor;

pub use build::{build, build_with};
pub use error::DaemonError;
pub use ipxe_loaders::REQUIRED_LOADERS;
pub use privileges::{PrivilegeError, settle};

use bind::{BoundSockets, Segment};
use meshd_central::{
    Shared, WATCH_INTERVAL,
    series::{SAMPLE_CHECK, Series},
};
use meshd_config::Site;
use meshd_serve::{
    admin, dhcp,
    metrics::{self, Metrics},
};
use std::sync::Arc;
use supervisor::DaemonTasks;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Maximum interval between two runs of the periodic maintenance. Pending maintenance runs earlier.
const CHORES_EVERY: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs the central node until SIGINT or SIGTERM. Call [`settle`] first, before the process has
/// threads.
pub async fn serve(site: Site) -> Result<(), DaemonError> {
    let central = build(site)?;
    let bound = bind::bind(&central)?;
    let stop = CancellationToken::new();
    // Stale leases have no use, but they must not prevent the start.
    if let Err(error) = central.vms.drop_stale_leases().await {
        tracing::error!(%error, "cannot remove leases of deleted VMs");
    }
    if let Err(error) = central.boot.shorten_leases_of_wrong_clock().await {
        tracing::error!(%error, "cannot correct leases of a wrong clock");
    }
    let tasks = spawn(&central, bound, &stop);
    tracing::info!(site = central.site().name, "meshd serves");
    let outcome = tasks.until_stopped(wait_for_signal(), &stop).await;
    central.close().await?;
    tracing::info!("meshd has stopped");
    outcome
}

/// Spawns every task, in the order of the boot chain.
fn spawn(central: &Shared, bound: BoundSockets, stop: &CancellationToken) -> DaemonTasks {
    let mut tasks = DaemonTasks::default();
    let localhost = || tokio::sync::watch::Sender::new(std::net::Ipv4Addr::LOCALHOST).subscribe();
    let boot_address = bound.segments.first().map_or_else(localhost, Segment::address);
    tasks.spawn_infallible("DHCP", dhcp::run(central.clone(), bound.dhcp, stop.clone()));
    let observed = central.clone();
    let stopped = stop.clone();
    tasks.spawn_infallible("LAN observation", async move {
        stopped.run_until_cancelled(observed.watch_lan()).await;
        observed.close_lan();
    });
    for segment in bound.segments {
        tasks.spawn("segment", segment.serve(central.clone(), stop.clone()));
    }
    let recorder = Metrics::install();
    tasks.spawn_infallible("metrics", metrics::observe(central.clone(), stop.clone()));
    if let Some(listener) = bound.metrics {
        let metrics = metrics::serve(central.clone(), recorder.clone(), listener, stop.clone());
        tasks.spawn_infallible("metrics listener", metrics);
    }
    let admin =
        admin::run(central.clone(), bound.admin, boot_address, recorder.clone(), stop.clone());
    tasks.spawn_infallible("admin API", admin);
    let watched = central.clone();
    let stopped = stop.clone();
    tasks.spawn_infallible("watch", async move {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stopped.run_until_cancelled(interval.tick()).await.is_some() {
            watched.watch().await;
            recorder.upkeep();
        }
    });
    let nodes = central.nodes.clone();
    let stopped = stop.clone();
    tasks.spawn_infallible("operations", async move {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stopped.run_until_cancelled(interval.tick()).await.is_some() {
            nodes.drive_operations().await;
        }
    });
    tasks.spawn_infallible("console logs", central.nodes.clone().record_consoles(stop.clone()));
    let rollouts = central.rollouts.clone();
    let stopped = stop.clone();
    tasks.spawn_infallible("rollouts", async move {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stopped.run_until_cancelled(interval.tick()).await.is_some() {
            rollouts.drive().await;
        }
    });
    tasks.spawn_infallible("time series", sample_series(central.series.clone(), stop.clone()));
    let generations = central.generations.clone();
    let stopped = stop.clone();
    tasks.spawn_infallible("generations", async move {
        generations.archive_revisions().await;
        loop {
            let woken = tokio::time::timeout(CHORES_EVERY, generations.wait_for_background_work());
            if stopped.run_until_cancelled(woken).await.is_none() {
                break;
            }
            if stopped.run_until_cancelled(generations.run_background_work()).await.is_none() {
                break;
            }
        }
    });
    tasks.spawn("reload", reload::run(central.clone(), stop.clone()));
    tasks
}

/// Takes a sample each minute. A sample that cannot be stored ends nothing.
async fn sample_series(series: Arc<Series>, stop: CancellationToken) {
    let mut interval = tokio::time::interval(SAMPLE_CHECK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        let series = series.clone();
        let sample = move || series.sample_when_due(metrics::resident_bytes());
        if let Err(error) = tokio::task::spawn_blocking(sample).await {
            tracing::error!(%error, "a sample of the time series failed");
        }
    }
}

/// Resolves at the first SIGINT or SIGTERM.
async fn wait_for_signal() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::error!("cannot listen for signals; end meshd with kill -9, which loses nothing");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
    }
}
