//! Rendered overlays by what determines them. A request for an overlay that is being rendered waits for that render; a request for a
//! cached one waits for nobody: renders run on threads of their own.

use super::{RenderError, Rendered};
use crate::locks::Leaf;
use meshd_types::Digest;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::{OnceCell, Semaphore};

/// Most rendered overlays in the cache, some kilobytes each; the oldest half goes when it is full.
const MAX_CACHED: usize = 4096;

/// Rendered overlays by the digest of what determines them.
pub(crate) struct Cache {
    inner: Leaf<CacheInner>,
    /// One render for each processor; more would only slow down everything else.
    permits: Semaphore,
    render_count: AtomicU64,
}

#[derive(Default)]
struct CacheInner {
    slots: BTreeMap<Digest, (u64, Arc<Slot>)>,
    clock: u64,
}
/// A render that is under way, or its outcome.
type Slot = OnceCell<Result<Rendered, Arc<RenderError>>>;

impl Default for Cache {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Cache { inner: Leaf::default(), permits: Semaphore::new(processors), render_count: AtomicU64::new(0) }
    }
}

impl Cache {
    /// The slot of a key, a new one if need be.
    fn slot(&self, key: Digest) -> Arc<Slot> {
        let mut inner = self.inner.lock();
        if let Some((_, slot)) = inner.slots.get(&key) {
            return slot.clone();
        }
        inner.clock += 1;
        let (clock, slot) = (inner.clock, Arc::new(Slot::new()));
        inner.slots.insert(key, (clock, slot.clone()));
        if inner.slots.len() > MAX_CACHED {
            let keep_after = clock.saturating_sub(MAX_CACHED as u64 / 2);
            inner.slots.retain(|_, (render_count, _)| *render_count > keep_after);
        }
        slot
    }

    /// Returns the outcome of a key: from the cache, from a render under way, or from a new render.
    pub(crate) async fn once(
        &self,
        key: Digest,
        make: impl FnOnce() -> Result<Rendered, RenderError> + Send + 'static,
    ) -> Result<Rendered, Arc<RenderError>> {
        let slot = self.slot(key);
        if let Some(Ok(rendered)) = slot.get() {
            count("cached");
            return Ok(rendered.clone());
        }
        let outcome = slot.get_or_init(|| self.make(make)).await;
        if outcome.is_err() {
            self.forget(key, &slot);
        }
        outcome.clone()
    }

    /// Renders made since the start: each different one counts once.
    pub(super) fn render_count(&self) -> u64 {
        self.render_count.load(Ordering::Relaxed)
    }

    async fn make(
        &self,
        make: impl FnOnce() -> Result<Rendered, RenderError> + Send + 'static,
    ) -> Result<Rendered, Arc<RenderError>> {
        let interrupted = || Arc::new(RenderError::Interrupted);
        let _permit = self.permits.acquire().await.map_err(|_| interrupted())?;
        let rendered = tokio::task::spawn_blocking(make).await.map_err(|_| interrupted())?;
        self.render_count.fetch_add(1, Ordering::Relaxed);
        rendered.map_err(Arc::new)
    }

    /// Failures are not cached: the next request may succeed.
    fn forget(&self, key: Digest, failed: &Arc<Slot>) {
        let mut inner = self.inner.lock();
        if inner.slots.get(&key).is_some_and(|(_, slot)| Arc::ptr_eq(slot, failed)) {
            inner.slots.remove(&key);
        }
    }
}

/// Counts the result of a request for a render.
pub(super) fn count(result: &'static str) {
    metrics::counter!("meshd_renders_total", "result" => result).increment(1);
}
