//! What nodes boot: rendered, archived, compared, rolled back, and read again at a reload.
//!
//! | module | content |
//! | --- | --- |
//! | `archive` | generations that nodes were given, compared and booted again |
//! | `drift_scan` | determines what each node would boot now |
//! | `reload` | reads site, overlays and images again, all or nothing |
//! | `render` | renders the overlay of a node |
//! | `render_cache` | rendered overlays, by what determines them |
//! | `render_context` | variables, groups and members of a node |
//! | `revisions` | archives profiles, and rolls them back |

mod archive;
mod drift_scan;
mod reload;
mod render;
mod render_cache;
mod render_context;
mod revisions;

pub(crate) use archive::kept;
pub use reload::{Reload, load_catalog};
pub use render::{RenderError, Rendered};
pub(crate) use render_context::Contexts;
pub use revisions::{CompareError, RollbackError};

use super::{enrolment::Enrolment, environment::Environment, locks::Leaf};
use archive::PendingArchive;
use drift_scan::Stale;
use meshd_store::{GenerationArchive, KeptRevisions};
use render_cache::Cache;
use std::{sync::Arc, time::Duration};

/// Renders and archives what nodes boot.
pub struct Generations {
    env: Arc<Environment>,
    enrolment: Arc<Enrolment>,
    renders: Cache,
    stale: Stale,
    kept: GenerationArchive,
    revisions: KeptRevisions,
    to_keep: PendingArchive,
    /// Monotonic time of the last sweep of the archive.
    swept: Leaf<Option<Duration>>,
    /// Held while the snapshot is replaced: by a reload, a rollback, or a node that is pinned.
    reloading: tokio::sync::Mutex<()>,
    /// The result of the last reload.
    reloaded: Leaf<Reload>,
}

impl Generations {
    /// Takes pinned generations and rolled back profiles into the snapshot, and has every node looked at.
    pub(super) fn new(env: Arc<Environment>, enrolment: Arc<Enrolment>) -> Self {
        let state_dir = env.site().state_dir.clone();
        let generations = Generations {
            env,
            enrolment,
            renders: Cache::default(),
            stale: Stale::default(),
            kept: GenerationArchive::new(&state_dir),
            revisions: KeptRevisions::new(&state_dir),
            to_keep: PendingArchive::default(),
            swept: Leaf::default(),
            reloading: tokio::sync::Mutex::default(),
            reloaded: Leaf::default(),
        };
        let live = generations.env.live().with_held(generations.all_held());
        generations.env.replace_live(generations.with_all_kept(live));
        generations.scan_all();
        generations
    }
}
