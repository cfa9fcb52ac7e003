//! Renders, archives, compares and rolls back what nodes boot, and reloads the site.
//!
//! | module | content |
//! | --- | --- |
//! | `archive` | archives, compares and restores delivered generations |
//! | `next_boot_scan` | determines what each node would boot now |
//! | `reload` | reads site, overlays and images again, all or nothing |
//! | `render` | renders the overlay of a node |
//! | `render_cache` | caches rendered overlays by the digest of their inputs |
//! | `render_context` | variables, groups and members of a node |
//! | `revision_pin` | prepares the pin of a node to a generation of its profile |
//! | `revisions` | archives profiles, and rolls them back |

mod archive;
mod next_boot_scan;
mod reload;
mod render;
mod render_cache;
mod render_context;
mod revision_pin;
mod revisions;

pub(crate) use archive::archive_entry;
pub use reload::{Reload, load_catalog};
pub(crate) use render::RenderTarget;
pub use render::{RenderError, Rendered};
pub(crate) use render_context::Contexts;
pub use revisions::{CompareError, RollbackError};

use super::{
    enrolment::Enrolment,
    environment::{Environment, interval::Interval},
    locks::Leaf,
};
use archive::PendingArchive;
use meshd_store::{GenerationArchive, RevisionArchive};
use next_boot_scan::ScanQueue;
use render_cache::Cache;
use std::sync::Arc;

/// Renders and archives what nodes boot.
pub struct Generations {
    env: Arc<Environment>,
    enrolment: Arc<Enrolment>,
    renders: Cache,
    scan_queue: ScanQueue,
    archive: GenerationArchive,
    revisions: RevisionArchive,
    pending_archive: PendingArchive,
    archive_sweeps: Interval,
    /// Serializes replacements of the snapshot: by a reload, a rollback or a pin.
    reloading: tokio::sync::Mutex<()>,
    /// Held by the thread that reads the site.
    reader: Arc<tokio::sync::Semaphore>,
    /// The result of the last reload.
    reloaded: Leaf<Reload>,
}

impl Generations {
    /// Adds pinned generations and rolled back profiles to the snapshot, and queues every node for
    /// the scan of next boots.
    pub(super) fn new(env: Arc<Environment>, enrolment: Arc<Enrolment>) -> Self {
        let state_dir = env.site().state_dir.clone();
        let generations = Generations {
            env,
            enrolment,
            renders: Cache::default(),
            scan_queue: ScanQueue::default(),
            archive: GenerationArchive::new(&state_dir),
            revisions: RevisionArchive::new(&state_dir),
            pending_archive: PendingArchive::default(),
            archive_sweeps: Interval::default(),
            reloading: tokio::sync::Mutex::default(),
            reader: Arc::new(tokio::sync::Semaphore::new(1)),
            reloaded: Leaf::default(),
        };
        let snapshot =
            generations.env.snapshot().with_rollbacks(generations.rolled_back_profiles());
        generations.env.replace_snapshot(generations.with_archived_contents(snapshot));
        generations.scan_all();
        generations
    }

    /// Background work: scans marked nodes, archives and collects generations.
    pub async fn run_background_work(self: &Arc<Self>) {
        self.scan_stale().await;
        self.archive_queued().await;
        self.publish_in_use().await;
        self.sweep().await;
    }
}
